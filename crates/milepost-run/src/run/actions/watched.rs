//! The SDK's way to a server over HTTP, watched: it ends the connection at an event that is too long, and does not say why.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};

type Failed = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// A client that notes when a server said more at once than it may.
#[derive(Clone)]
pub(super) struct Watched {
    pub client: reqwest::Client,
    pub passed: Arc<AtomicBool>,
}

impl Watched {
    fn watch(&self, events: BoxedSseResponse) -> BoxedSseResponse {
        let passed = Arc::clone(&self.passed);
        let note = move |event: &Result<_, SseError>| {
            // The SDK keeps the type of this error to itself.
            if matches!(event, Err(SseError::Body(why)) if why.to_string().contains("exceeded the maximum size")) {
                passed.store(true, Ordering::Relaxed);
            }
        };
        events.inspect(note).boxed()
    }
}

impl StreamableHttpClient for Watched {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        self.client.post_message(uri, message, session, token, headers).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        most: usize,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let answer = self.client.post_message_with_max_sse_event_size(uri, message, session, token, headers, most);
        Ok(match answer.await? {
            StreamableHttpPostResponse::Sse(events, session) => {
                StreamableHttpPostResponse::Sse(self.watch(events), session)
            }
            other => other,
        })
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), Failed> {
        self.client.delete_session(uri, session, token, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, Failed> {
        self.client.get_stream(uri, session, last, token, headers).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
        most: usize,
    ) -> Result<BoxedSseResponse, Failed> {
        let events = self.client.get_stream_with_max_sse_event_size(uri, session, last, token, headers, most);
        Ok(self.watch(events.await?))
    }
}
