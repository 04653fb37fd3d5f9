//! One call over HTTP: the request out, the answer in as it comes, within its times and sizes.

use std::sync::Arc;
use std::time::Duration;

use milepost_model::{Source, Timestamp};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::answer::{Answer, Heard, Limited, Outcome};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::key::Key;
use crate::limits::{MAX_FRAME_BYTES, MAX_REFUSAL_BYTES, MAX_RESPONSE_BYTES, Timeouts};
use crate::rate::{self, Headers};
use crate::refusal::{self, Refused};
use crate::sse;

/// Reads an answer in one provider's format.
pub(crate) trait Reading: Send {
    /// Takes an event of the stream.
    fn event(&mut self, event: &sse::Event, heard: Heard<'_>) -> Result<(), Broken>;
    /// Takes an answer that came in one piece.
    fn whole(&mut self, body: &Value, heard: Heard<'_>) -> Result<(), Broken>;
    /// Whether the answer is complete, and nothing after it matters.
    fn is_done(&self) -> bool;
    /// Whether the answer can stand as it is when the stream ends here.
    fn may_end(&self) -> bool;
    /// Whether something arrived that is worth keeping.
    fn has_something(&self) -> bool;
    /// Whether the provider said what it costs so far.
    fn has_usage(&self) -> bool;
    /// What arrived; `cut` says why it is not whole.
    fn finish(&mut self, cut: Option<&Error>) -> Answer;
}

/// Why an event cannot be taken.
#[derive(Debug)]
pub(crate) enum Broken {
    /// It is not what the format says.
    Garbled(String),
    /// The answer has more blocks than the limit.
    TooLarge(&'static str, usize),
    /// The provider says that something went wrong.
    Refused(Value),
}

/// Sends calls to one model.
#[derive(Debug)]
pub(crate) struct Transport {
    pub client: reqwest::Client,
    pub url: reqwest::Url,
    pub model: String,
    pub headers: HeaderMap,
    pub key: Option<Key>,
    pub key_variable: String,
    pub timeouts: Timeouts,
    pub source: Source,
}

/// When a server that refused asks to be asked again: its `retry-after`, at least [`MIN_LIMIT_MS`](crate::limits::MIN_LIMIT_MS)
/// and at most [`MAX_LIMIT_MS`](crate::limits::MAX_LIMIT_MS) from now.
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Timestamp> {
    let (at, _) = rate::retry_after(&Found(headers), now)?;
    let (soonest, latest) = (crate::limits::MIN_LIMIT_MS, crate::limits::MAX_LIMIT_MS);
    Some(Timestamp(at.0.clamp(now.plus_ms(soonest).0, now.plus_ms(latest).0)))
}

struct Found<'a>(&'a HeaderMap);

impl Headers for Found<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str().ok()
    }
}

/// How reading stopped, short of an answer.
enum Stopped {
    Error(Error),
    Limited(Limited),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Stopped::Error(error)
    }
}

/// A client for requests of any kind, encrypted as the models' are. Nothing is redirected or sent twice.
pub fn http_client() -> Result<reqwest::Client, Error> {
    let builder = reqwest::Client::builder()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(Timeouts::default().connect())
        .tls_backend_preconfigured(tls()?);
    builder.build().map_err(|error| Error::config("the HTTP client", told(&error), "check the proxy's settings"))
}

/// A client for one base URL. Nothing is redirected or sent twice; loopback addresses pass by any proxy.
pub(crate) fn client(url: &reqwest::Url, timeouts: Timeouts) -> Result<reqwest::Client, Error> {
    let builder = reqwest::Client::builder()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(timeouts.connect())
        .tls_backend_preconfigured(tls()?);
    let builder = if is_loopback(url) { builder.no_proxy() } else { builder };
    builder.build().map_err(|error| Error::config("the HTTP client", told(&error), "check the proxy's settings"))
}

pub(crate) fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn tls() -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config("TLS", error.to_string(), "report this"))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// An error and its causes, without the URL, which may hold a password.
fn told(error: &reqwest::Error) -> String {
    let mut out = String::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !out.contains(&text) {
            out.push_str(if out.is_empty() { "" } else { ": " });
            out.push_str(&text);
        }
        cause = error.source();
    }
    if out.is_empty() { "the connection failed".to_owned() } else { out }
}

impl Transport {
    /// Sends a body and reads the answer.
    pub async fn call(
        &self,
        body: &Value,
        idempotency_key: Option<&str>,
        reading: &mut dyn Reading,
        cancel: &Cancel,
        heard: Heard<'_>,
    ) -> Result<Outcome, Error> {
        let stopped = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Error::Cancelled { model: self.model.clone() }.into()),
            read = timeout(self.timeouts.whole(), self.exchange(body, idempotency_key, reading, heard)) => {
                read.unwrap_or_else(|_| Err(self.slow("the whole call", "whole_ms", self.timeouts.whole()).into()))
            }
        };
        match stopped {
            Ok(ready) => {
                let mut answer = reading.finish(None);
                answer.ready_at = ready;
                Ok(Outcome::Whole(answer))
            }
            Err(Stopped::Limited(mut limited)) => {
                if reading.has_something() || reading.has_usage() {
                    let why = Error::Interrupted { model: self.model.clone(), why: limited.why.clone() };
                    limited.partial = Some(Box::new(reading.finish(Some(&why))));
                }
                Ok(Outcome::Limited(limited))
            }
            Err(Stopped::Error(why)) if reading.has_something() || reading.has_usage() => {
                Ok(Outcome::Cut { answer: reading.finish(Some(&why)), why })
            }
            Err(Stopped::Error(why)) => Err(why),
        }
    }

    fn slow(&self, what: &'static str, limit: &'static str, time: Duration) -> Error {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Error::TooSlow { model: self.model.clone(), what, limit, ms }
    }

    fn too_large(&self, limit: &'static str, at: usize) -> Stopped {
        Error::TooLarge { model: self.model.clone(), limit, at }.into()
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        if error.is_timeout() {
            return self.slow("connecting", "connect_ms", self.timeouts.connect());
        }
        Error::Unreachable { model: self.model.clone(), why: self.scrub(&told(error)) }
    }

    fn scrub(&self, text: &str) -> String {
        let text = refusal::plain(text);
        self.key.as_ref().map_or(text.clone(), |key| key.scrub(&text))
    }

    async fn exchange(
        &self,
        body: &Value,
        idempotency_key: Option<&str>,
        reading: &mut dyn Reading,
        heard: Heard<'_>,
    ) -> Result<Option<Timestamp>, Stopped> {
        let mut headers = self.headers.clone();
        if let Some(key) = idempotency_key.and_then(|key| HeaderValue::from_str(key).ok()) {
            headers.insert(HeaderName::from_static("idempotency-key"), key);
        }
        let request = self.client.post(self.url.clone()).headers(headers).body(body.to_string());
        let first_byte = self.timeouts.first_byte();
        let slow = || Stopped::from(self.slow("the first byte", "first_byte_ms", first_byte));
        // Connecting has its own limit, inside of the client.
        let sent = timeout(self.timeouts.connect() + first_byte, request.send()).await.map_err(|_| slow())?;
        let mut response = sent.map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_json = kind.to_ascii_lowercase().starts_with("application/json");
        match is_json {
            true => self.read_whole(&mut response, reading, heard).await?,
            false => self.read_stream(&mut response, reading, heard).await?,
        }
        let now = self.source.now();
        Ok(rate::exhausted(&Found(response.headers()), now).map(|(at, _)| at).filter(|at| *at > now))
    }

    async fn next(&self, response: &mut reqwest::Response, wait: Duration) -> Result<Option<Vec<u8>>, Stopped> {
        match timeout(wait, response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk.map(Vec::from)),
            Ok(Err(error)) => {
                let why = format!("the connection broke ({})", self.scrub(&told(&error)));
                Err(Error::Interrupted { model: self.model.clone(), why }.into())
            }
            Err(_) => Err(self.slow("the next piece of the answer", "progress_ms", wait).into()),
        }
    }

    async fn read_whole(
        &self,
        response: &mut reqwest::Response,
        reading: &mut dyn Reading,
        heard: Heard<'_>,
    ) -> Result<(), Stopped> {
        let mut body = Vec::new();
        while let Some(chunk) = self.next(response, self.timeouts.progress()).await? {
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(self.too_large("MAX_RESPONSE_BYTES", MAX_RESPONSE_BYTES));
            }
            body.extend(chunk);
        }
        let value =
            serde_json::from_slice(&body).map_err(|error| self.garbled(format!("the body is not JSON ({error})")))?;
        reading.whole(&value, heard).map_err(|broken| self.broken(broken, response.headers()))
    }

    async fn read_stream(
        &self,
        response: &mut reqwest::Response,
        reading: &mut dyn Reading,
        heard: Heard<'_>,
    ) -> Result<(), Stopped> {
        let mut parser = sse::Parser::new(MAX_FRAME_BYTES);
        let (mut size, mut events) = (0usize, Vec::new());
        loop {
            let wait = if size == 0 { self.timeouts.first_byte() } else { self.timeouts.progress() };
            let Some(chunk) = self.next(response, wait).await? else { break };
            size = size.saturating_add(chunk.len());
            if size > MAX_RESPONSE_BYTES {
                return Err(self.too_large("MAX_RESPONSE_BYTES", MAX_RESPONSE_BYTES));
            }
            let pushed = parser.push(&chunk, &mut events);
            for event in events.drain(..) {
                reading.event(&event, heard).map_err(|broken| self.broken(broken, response.headers()))?;
                if reading.is_done() {
                    return Ok(());
                }
            }
            pushed.map_err(|sse::TooLarge| self.too_large("MAX_FRAME_BYTES", MAX_FRAME_BYTES))?;
        }
        // The last event may lack its empty line, or be half an event: then it says nothing.
        if let Some(event) = parser.finish() {
            match reading.event(&event, heard) {
                Ok(()) | Err(Broken::Garbled(_)) => {}
                Err(broken) => return Err(self.broken(broken, response.headers())),
            }
        }
        if reading.is_done() || reading.may_end() {
            return Ok(());
        }
        let why = if size == 0 { "it is empty" } else { "the stream ended before the answer did" };
        Err(Error::Interrupted { model: self.model.clone(), why: why.to_owned() }.into())
    }

    fn garbled(&self, why: String) -> Stopped {
        Error::Garbled { model: self.model.clone(), why: self.scrub(&why) }.into()
    }

    fn broken(&self, broken: Broken, headers: &HeaderMap) -> Stopped {
        match broken {
            Broken::Garbled(why) => self.garbled(why),
            Broken::TooLarge(limit, at) => self.too_large(limit, at),
            Broken::Refused(body) => self.refused(200, &body, headers),
        }
    }

    async fn refusal(&self, mut response: reqwest::Response) -> Stopped {
        let status = response.status().as_u16();
        let mut body = Vec::new();
        // What the provider says is worth a little waiting, not more: the status alone tells the kind.
        while let Ok(Some(chunk)) = self.next(&mut response, self.timeouts.progress()).await {
            body.extend(chunk);
            if body.len() >= MAX_REFUSAL_BYTES {
                body.truncate(MAX_REFUSAL_BYTES);
                break;
            }
        }
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
        self.refused(status, &body, response.headers())
    }

    fn refused(&self, status: u16, body: &Value, headers: &HeaderMap) -> Stopped {
        let refused = refusal::read(status, body);
        let why = self.scrub(&refused.why());
        let (model, now) = (self.model.clone(), self.source.now());
        let error = match refused.kind() {
            Refused::Limit => {
                let (until, told) = rate::until(&Found(headers), &refused.message, now);
                return Stopped::Limited(Limited { until, why, told, partial: None });
            }
            Refused::Busy => {
                let retry_at = retry_after(headers, now);
                Error::Unavailable { model, why, retry_at }
            }
            Refused::Denied => Error::Denied { model, why, variable: self.key_variable.clone() },
            Refused::NoCredit => Error::NoCredit { model, why },
            Refused::TooLong => Error::TooLong { model, why },
            Refused::Other => Error::Refused { model, why },
        };
        error.into()
    }
}
