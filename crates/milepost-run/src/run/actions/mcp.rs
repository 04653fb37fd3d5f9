//! Tools of MCP servers, through the official SDK: a program that speaks over its standard streams, in a process group of
//! its own, or a server that is reached over streamable HTTP.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use milepost_model::{Source, Timestamp};
use milepost_models::{Tool, http_client, retry_after};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use rmcp::model::{CallToolRequestParams, CallToolResult, ErrorCode, MetaObject, RequestMetaObject};
use rmcp::service::{ClientInitializeError, RunningService};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{
    HttpStatusError, StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
};
use rmcp::{RoleClient, ServiceError, ServiceExt};
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use super::group::{Group, confine};
use super::http_client::HttpClient;
use super::tools::shorten;
use super::{env_headers, pairs, text, texts};
use crate::graph::limits::MAX_TOOLS;
use crate::run::action::{Action, After, Failed, Step};

/// The largest message of a server (32 MiB).
const MAX_MESSAGE_BYTES: usize = 32 << 20;
/// How much of a result is kept unless the node says otherwise (1 MiB).
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// How long a server may take to greet, in milliseconds.
const GREETING_MS: u64 = 30_000;
/// How long a server may take to end when it is asked to, in milliseconds.
const GRACE_MS: u64 = 3000;
/// So much of the end of a program's error output is told (1 KiB), after so long a wait for it.
const MAX_COMPLAINT_BYTES: usize = 1024;
const COMPLAINT_WAIT_MS: u64 = 100;
/// The name under which a call carries its step's key.
const KEY: &str = "milepost/idempotency-key";

/// Reads lines of at most a limit, and ends with an error at a longer one: the SDK would wait for its answer for ever.
struct Limited<R> {
    inner: R,
    line: usize,
    passed: Arc<AtomicBool>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Limited<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.inner).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                let new = &buffer.filled()[before..];
                self.line = match new.iter().rposition(|byte| *byte == b'\n') {
                    Some(at) => new.len() - at - 1,
                    None => self.line + new.len(),
                };
                if self.line > MAX_MESSAGE_BYTES {
                    self.passed.store(true, Ordering::Relaxed);
                    return Poll::Ready(Err(io::Error::other("a line is too long")));
                }
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}

/// The end of what a program writes to its error output: most often why it does not speak.
#[derive(Clone, Default)]
struct Complaints(Arc<Mutex<Vec<u8>>>);

impl Complaints {
    /// Reads until the program closes it. What is older than the last bytes is let go.
    fn of(stderr: Option<ChildStderr>) -> Self {
        let kept = Self::default();
        if let Some(mut stderr) = stderr {
            let kept = kept.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
                    let mut kept = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.extend_from_slice(&buffer[..count]);
                    let old = kept.len().saturating_sub(MAX_COMPLAINT_BYTES);
                    kept.drain(..old);
                }
            });
        }
        kept
    }

    /// Behind an error's text; nothing when nothing was written. What was written before the program ended is waited for.
    async fn told(&self) -> String {
        tokio::time::sleep(Duration::from_millis(COMPLAINT_WAIT_MS)).await;
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match String::from_utf8_lossy(&kept).trim() {
            "" => String::new(),
            said => format!("; it wrote: {said}"),
        }
    }
}

/// A server that can be asked.
pub(super) struct Server {
    service: RunningService<RoleClient, ()>,
    passed: Arc<AtomicBool>,
    program: Option<(Child, Group)>,
    limit: usize,
    source: Source,
}

impl Server {
    /// Starts or reaches a server.
    pub async fn open(parameters: &Value, step: &Step) -> Result<Self, Failed> {
        let limit = parameters.get("max_output_bytes").and_then(Value::as_u64).unwrap_or(MAX_OUTPUT_BYTES);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let passed = Arc::<AtomicBool>::default();
        let greeting = Duration::from_millis(GREETING_MS);
        let silent = || format!("the server did not greet within GREETING_MS, {GREETING_MS} ms");
        if let Some(url) = text(parameters, "url") {
            let transport = over_http(url, parameters, step)?;
            let service = timeout(greeting, ().serve(transport)).await.map_err(|_| Failed::Transient(silent()))?;
            let source = step.parts.engine.source().clone();
            let service = service.map_err(|error| match refused(&error, source.now()) {
                // Nothing was called.
                Some((failed, _)) => failed,
                None => Failed::Transient(format!("the server cannot be reached: {}", told(&error))),
            })?;
            return Ok(Self { service, passed, program: None, limit, source });
        }
        let argv = texts(parameters, "argv");
        let Some((program, arguments)) = argv.split_first() else {
            return Err(Failed::Fatal("argv is empty".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(arguments);
        confine(&mut command, parameters, step);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| Failed::Fatal(format!("the server cannot be started: {error}")))?;
        let group = Group::of(&child);
        let complaints = Complaints::of(child.stderr.take());
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failed::Transient("the server has no standard streams".to_owned()));
        };
        let reader = Limited { inner: stdout, line: 0, passed: Arc::clone(&passed) };
        let transport = AsyncRwTransport::new_client(reader, stdin).with_max_line_length(usize::MAX);
        let why = match timeout(greeting, ().serve(transport)).await {
            Ok(Ok(service)) => {
                let source = step.parts.engine.source().clone();
                return Ok(Self { service, passed, program: Some((child, group)), limit, source });
            }
            Ok(Err(error)) => format!("the server does not speak MCP: {}", told(&error)),
            Err(_) => silent(),
        };
        Err(Failed::Transient(why + &complaints.told().await))
    }

    /// Its tools, as a model is told.
    pub async fn tools(&self) -> Result<Vec<Tool>, Failed> {
        let listed = timeout(Duration::from_millis(GREETING_MS), self.service.list_all_tools()).await;
        let listed = listed.map_err(|_| Failed::Transient("the server does not list its tools".to_owned()))?;
        let listed = listed.map_err(|error| match self.failed(&error) {
            // Nothing was to happen.
            Failed::Uncertain(why) => Failed::Transient(why),
            Failed::AfterEffect(after) => Failed::Fatal(after.why),
            other => other,
        })?;
        let tools = listed.into_iter().take(MAX_TOOLS + 1).map(|tool| Tool {
            name: tool.name.into_owned(),
            description: tool.description.map(std::borrow::Cow::into_owned).unwrap_or_default(),
            input_schema: Value::Object((*tool.input_schema).clone()),
        });
        Ok(tools.collect())
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>, key: &str) -> Result<Value, Failed> {
        let mut call = CallToolRequestParams::new(tool.to_owned());
        call.arguments = Some(arguments);
        call.meta = Some(RequestMetaObject(MetaObject(Map::from_iter([(KEY.to_owned(), key.into())]))));
        let result = self.service.call_tool(call).await.map_err(|error| self.failed(&error))?;
        given(&result, self.limit)
    }

    fn failed(&self, error: &ServiceError) -> Failed {
        if self.passed.load(Ordering::Relaxed) {
            let why = format!("the server said more at once than MAX_MESSAGE_BYTES, {MAX_MESSAGE_BYTES}");
            // The tool has run: it is its answer that is too long.
            return Failed::AfterEffect(Box::new(After { why, is_final: true, ..After::default() }));
        }
        match error {
            ServiceError::McpError(error) => {
                let said = shorten(&error.message.as_ref().into(), 600);
                match error.code {
                    ErrorCode::INVALID_REQUEST
                    | ErrorCode::METHOD_NOT_FOUND
                    | ErrorCode::INVALID_PARAMS
                    | ErrorCode::PARSE_ERROR => Failed::Fatal(format!("the server refused the call: {said}")),
                    // How far the tool came, it does not say.
                    _ => {
                        let why = format!("the server failed at the call: {said}");
                        Failed::AfterEffect(Box::new(After { why, is_final: true, ..After::default() }))
                    }
                }
            }
            other => match refused(other, self.source.now()) {
                Some((failed, true)) => failed,
                // How far the tool came, nobody knows.
                Some((Failed::Transient(why) | Failed::Limited { why, .. }, false)) => Failed::Uncertain(why),
                _ => Failed::Uncertain(format!("the server broke off: {}", told(other))),
            },
        }
    }

    /// Ends it: the connection is closed, a program may take its time, then its whole group is ended.
    pub async fn close(mut self) {
        let grace = Duration::from_millis(GRACE_MS);
        // What does not end by itself is ended below.
        let _ = self.service.close_with_timeout(grace).await;
        if let Some((child, group)) = &mut self.program {
            group.signal(Signal::TERM);
            let _ = timeout(grace, child.wait()).await;
        }
    }
}

type Cause = dyn std::error::Error + 'static;
type Transport = StreamableHttpError<reqwest::Error>;

/// What an error says, without the names of the types that it went through.
fn told(error: &Cause) -> String {
    let plain = chain(error).find_map(|error| error.downcast_ref::<Transport>().map(ToString::to_string));
    shorten(&plain.unwrap_or_else(|| error.to_string()).into(), 600)
}

/// An error and what it comes from.
fn chain(error: &Cause) -> impl Iterator<Item = &Cause> {
    std::iter::successors(Some(error), |error| cause(*error))
}

fn cause(error: &Cause) -> Option<&Cause> {
    // The SDK does not say so itself.
    let sent = match error.downcast_ref::<ServiceError>() {
        Some(ServiceError::TransportSend(sent)) => Some(sent),
        _ => match error.downcast_ref::<ClientInitializeError>() {
            Some(ClientInitializeError::TransportError { error, .. }) => Some(error),
            _ => None,
        },
    };
    match sent {
        Some(sent) => Some(&*sent.error),
        None => error.source(),
    }
}

/// What an answer of the server's is that has nothing to do with MCP; and whether it says that nothing happened.
fn refused(error: &Cause, now: Timestamp) -> Option<(Failed, bool)> {
    let status = chain(error).find_map(|error| match error.downcast_ref::<Transport>() {
        Some(StreamableHttpError::HttpStatus(status)) => Some(status),
        _ => error.downcast_ref::<HttpStatusError>(),
    })?;
    let why = format!("the server answered with status {}", status.status);
    let mut headers = HeaderMap::new();
    let after = status.retry_after.as_deref().and_then(|after| HeaderValue::from_str(after).ok());
    headers.extend(after.map(|after| (RETRY_AFTER, after)));
    let failed = match retry_after(&headers, now) {
        Some(until) => Failed::Limited { until, why },
        None => Failed::Transient(why),
    };
    Some((failed, matches!(status.status, 401 | 403 | 429 | 503)))
}

fn over_http(url: &str, parameters: &Value, step: &Step) -> Result<StreamableHttpClientTransport<HttpClient>, Failed> {
    let wrong = |what: &str, why: String| Failed::Fatal(format!("{what}: {why}"));
    let url = reqwest::Url::parse(url).map_err(|error| wrong("the url", error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("the url", "it is neither http nor https".to_owned()));
    }
    let mut headers = HashMap::new();
    let own = [("idempotency-key".into(), step.key.clone())];
    for (name, value) in pairs(parameters, "headers").into_iter().chain(env_headers(parameters)?).chain(own) {
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|error| wrong("a header's name", error.to_string()))?;
        let mut value =
            HeaderValue::from_str(&value).map_err(|_| wrong("a header", format!("{name} has a value that is none")))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    let client = http_client().map_err(|error| Failed::Fatal(error.to_string()))?;
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(headers)
        .reinit_on_expired_session(false);
    Ok(StreamableHttpClientTransport::with_client(HttpClient::new(client, MAX_MESSAGE_BYTES), config))
}

/// What a tool gave, within a limit.
fn given(result: &CallToolResult, limit: usize) -> Result<Value, Failed> {
    let mut text = String::new();
    let mut content = Vec::new();
    let mut size = 0;
    for block in &result.content {
        let block = serde_json::to_value(block).unwrap_or_default();
        size += block.to_string().len();
        if let Some(said) = block.get("text").and_then(Value::as_str) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(said);
        }
        content.push(block);
    }
    let structured = result.structured_content.clone().unwrap_or_default();
    let truncated = size > limit || structured.to_string().len() > limit;
    let text = shorten(&text.into(), limit);
    if result.is_error == Some(true) {
        let why = format!("the tool failed: {}", shorten(&text.into(), 600));
        // It ran: how far it came, it does not say.
        return Err(Failed::AfterEffect(Box::new(After { why, ..After::default() })));
    }
    let (content, structured) = if truncated { (Value::Null, Value::Null) } else { (content.into(), structured) };
    Ok(json!({"text": text, "content": content, "structured": structured, "truncated": truncated}))
}

fn arguments(parameters: &Value) -> Map<String, Value> {
    parameters.get("arguments").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// The action `mcp`: a server for one call.
pub(super) struct Mcp;

#[async_trait]
impl Action for Mcp {
    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let told = || Failed::Transient("it was told to end".to_owned());
        let server = tokio::select! {
            server = Server::open(&step.parameters, &step) => server?,
            () = step.cancel.cancelled() => return Err(told()),
        };
        step.progress();
        let tool = text(&step.parameters, "tool").unwrap_or_default();
        let result = tokio::select! {
            result = server.call(tool, arguments(&step.parameters), &step.key) => result,
            () = step.cancel.cancelled() => Err(Failed::Uncertain("it was told to end".to_owned())),
        };
        server.close().await;
        result
    }
}

/// A tool of a server that an agent holds.
pub(super) struct ServerTool(pub Arc<Server>);

#[async_trait]
impl Action for ServerTool {
    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let tool = text(&step.parameters, "tool").unwrap_or_default();
        tokio::select! {
            result = self.0.call(tool, arguments(&step.parameters), &step.key) => result,
            () = step.cancel.cancelled() => Err(Failed::Uncertain("it was told to end".to_owned())),
        }
    }
}
