//! How MCP's messages go over HTTP, within a limit: what a server says at once, in an event or in one body, is read no further
//! than that, and whoever asked is answered with an error that says so. The SDK's own client reads a body whole, however long
//! it is, and does not say why it ends the events.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

type Failed = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// So much is read of what a server says of a refusal (64 KiB).
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// A client that reads within a limit.
#[derive(Clone)]
pub(super) struct HttpClient {
    client: reqwest::Client,
    /// The most that is read at once.
    most: usize,
    /// An event that nobody asked for was longer: no more of them are listened to.
    is_deaf: Arc<AtomicBool>,
}

impl HttpClient {
    pub fn new(client: reqwest::Client, most: usize) -> Self {
        Self { client, most, is_deaf: Arc::default() }
    }

    fn request(
        request: RequestBuilder,
        session: Option<&str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<RequestBuilder, Failed> {
        // Those that the transport sets itself.
        let is_own = |name: &HeaderName| {
            [ACCEPT.as_str(), HEADER_SESSION_ID, HEADER_LAST_EVENT_ID]
                .iter()
                .any(|own| name.as_str().eq_ignore_ascii_case(own))
        };
        if let Some(name) = headers.keys().find(|name| is_own(name)) {
            return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
        }
        let mut request = request.header(ACCEPT, format!("{EVENT_STREAM_MIME_TYPE}, {JSON_MIME_TYPE}"));
        request = request.headers(headers.into_iter().collect());
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(session) = session {
            request = request.header(HEADER_SESSION_ID, session);
        }
        Ok(request)
    }

    /// The answer to a request whose own is too long.
    fn too_long(&self, id: RequestId) -> ServerJsonRpcMessage {
        let why = format!("it said more at once than MAX_MESSAGE_BYTES, {}", self.most);
        ServerJsonRpcMessage::error(ErrorData::internal_error(why, None), Some(id))
    }

    /// The events of an answer, each within the limit. One that is longer is the last, and answers the request.
    fn events(&self, response: Response, asked: Option<RequestId>) -> BoxedSseResponse {
        let (mut size, most, passed) = (EventSize::default(), self.most, Arc::new(AtomicBool::new(false)));
        let note = Arc::clone(&passed);
        let parts = response.bytes_stream().map(move |part| {
            let part = part.map_err(std::io::Error::other)?;
            if size.after(&part) <= most {
                return Ok(part);
            }
            note.store(true, Ordering::Relaxed);
            Err(std::io::Error::other("an event is too long"))
        });
        let answer = asked.map(|id| serde_json::to_string(&self.too_long(id)).unwrap_or_default());
        let is_deaf = Arc::clone(&self.is_deaf);
        let within = SseStream::from_bytes_stream(parts).scan(false, move |is_over, event| {
            let was_over = *is_over;
            let event = match event {
                Err(error) if passed.load(Ordering::Relaxed) => {
                    *is_over = true;
                    match answer.clone() {
                        Some(data) => Ok(Sse { data: Some(data), ..Sse::default() }),
                        None => {
                            is_deaf.store(true, Ordering::Relaxed);
                            Err(error)
                        }
                    }
                }
                event => event,
            };
            std::future::ready((!was_over).then_some(event))
        });
        within.boxed()
    }
}

/// A body; none when it is longer than the limit.
async fn body(response: Response, most: usize) -> Result<Option<Vec<u8>>, Failed> {
    let mut body = Vec::new();
    let mut parts = response.bytes_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(StreamableHttpError::Client)?;
        if body.len() + part.len() > most {
            return Ok(None);
        }
        body.extend_from_slice(&part);
    }
    Ok(Some(body))
}

/// How long an event is so far. An empty line ends it; a line ends with a line feed, a carriage return, or both.
#[derive(Default)]
struct EventSize {
    event: usize,
    line: usize,
    was_return: bool,
}

impl EventSize {
    /// The longest that one was within these bytes, with what came before them.
    fn after(&mut self, bytes: &[u8]) -> usize {
        let mut longest = 0;
        for byte in bytes {
            let is_second = std::mem::replace(&mut self.was_return, *byte == b'\r') && *byte == b'\n';
            match byte {
                b'\n' if is_second => {}
                b'\n' | b'\r' => {
                    if self.line == 0 {
                        self.event = 0;
                    }
                    self.line = 0;
                }
                _ => {
                    self.line += 1;
                    self.event += 1;
                    longest = longest.max(self.event);
                }
            }
        }
        longest
    }
}

fn is_of(response: &Response, kind: &str) -> bool {
    response.headers().get(CONTENT_TYPE).is_some_and(|found| found.as_bytes().starts_with(kind.as_bytes()))
}

fn content_type(response: &Response) -> Failed {
    let found = response.headers().get(CONTENT_TYPE).map(|found| String::from_utf8_lossy(found.as_bytes()).into());
    StreamableHttpError::UnexpectedContentType(found)
}

/// A status that says all there is to say: whoever asked may not, or should come again.
fn by_status(response: &Response) -> Option<Failed> {
    let status = response.status();
    let is_told = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()).map(str::to_owned);
    is_told.then(|| HttpStatusError::new(status.as_u16(), after).into())
}

/// Asked for what only newer servers know, an older one may refuse in any form: it is told in the form of the protocol, so that
/// the SDK greets it in the older way.
fn refused_discovery(
    message: &ClientJsonRpcMessage,
    status: StatusCode,
    said: Option<&ServerJsonRpcMessage>,
) -> Option<ServerJsonRpcMessage> {
    let ClientJsonRpcMessage::Request(request) = message else { return None };
    if !status.is_client_error() || !matches!(request.request, ClientRequest::DiscoverRequest(_)) {
        return None;
    }
    let error = match said {
        Some(ServerJsonRpcMessage::Error(error)) => error.error.clone(),
        _ => ErrorData::invalid_request(format!("the server answered with status {status}"), None),
    };
    Some(ServerJsonRpcMessage::error(error, Some(request.id.clone())))
}

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let request = Self::request(self.client.post(&*uri), session.as_deref(), token, headers)?;
        let said = serde_json::to_vec(&message)?;
        let response = request.header(CONTENT_TYPE, JSON_MIME_TYPE).body(said).send().await;
        let response = response.map_err(StreamableHttpError::Client)?;
        let status = response.status();
        let is_json = is_of(&response, JSON_MIME_TYPE);
        // Whether the server owes an answer.
        let asked = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let id = response.headers().get(HEADER_SESSION_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        if !status.is_success() {
            let refused = match by_status(&response) {
                // An error of the protocol's own would say more.
                Some(refused) if !(status.is_server_error() && is_json) => return Err(refused),
                refused => refused,
            };
            // What cannot be read, or is too long, says nothing.
            let body = body(response, MAX_REFUSAL_BYTES).await.ok().flatten().unwrap_or_default();
            let said = serde_json::from_slice::<ServerJsonRpcMessage>(&body).ok();
            let discovery = refused_discovery(&message, status, said.as_ref()).filter(|_| session.is_none());
            if let Some(told) = discovery {
                return Ok(StreamableHttpPostResponse::Json(told, None));
            }
            return match said {
                Some(error @ ServerJsonRpcMessage::Error(_)) if is_json => {
                    Ok(StreamableHttpPostResponse::Json(error, id))
                }
                _ => Err(refused.unwrap_or_else(|| {
                    let said = format!("HTTP {status}: {}", String::from_utf8_lossy(&body));
                    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(said))
                })),
            };
        }
        if is_of(&response, EVENT_STREAM_MIME_TYPE) {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response, asked), id));
        }
        // Some say nothing with a status that promises something.
        if asked.is_none() && response.content_length() == Some(0) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !is_json {
            return Err(content_type(&response));
        }
        let answer = body(response, self.most).await?.map(|body| serde_json::from_slice(&body));
        match (answer, asked) {
            (Some(Ok(answer)), _) => Ok(StreamableHttpPostResponse::Json(answer, id)),
            (_, None) => Ok(StreamableHttpPostResponse::Accepted),
            (Some(Err(error)), _) => Err(error.into()),
            (None, Some(asked)) => Ok(StreamableHttpPostResponse::Json(self.too_long(asked), id)),
        }
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        _: usize,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        self.post_message(uri, message, session, token, headers).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), Failed> {
        let request = Self::request(self.client.delete(&*uri), Some(&session), token, headers)?;
        let response = request.send().await.map_err(StreamableHttpError::Client)?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Ok(()),
            _ => response.error_for_status().map(drop).map_err(StreamableHttpError::Client),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, Failed> {
        // The SDK comes again after whatever else is said.
        if self.is_deaf.load(Ordering::Relaxed) {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        let mut request = Self::request(self.client.get(&*uri), session.as_deref(), token, headers)?;
        if let Some(last) = last {
            request = request.header(HEADER_LAST_EVENT_ID, last);
        }
        let response = request.send().await.map_err(StreamableHttpError::Client)?;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            let said = response.headers().get(WWW_AUTHENTICATE).and_then(|said| said.to_str().ok());
            return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(said.unwrap_or_default().to_owned())));
        }
        if let Some(refused) = by_status(&response) {
            return Err(refused);
        }
        let response = response.error_for_status().map_err(StreamableHttpError::Client)?;
        match is_of(&response, EVENT_STREAM_MIME_TYPE) {
            true => Ok(self.events(response, None)),
            false => Err(content_type(&response)),
        }
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
        _: usize,
    ) -> Result<BoxedSseResponse, Failed> {
        self.get_stream(uri, session, last, token, headers).await
    }
}
