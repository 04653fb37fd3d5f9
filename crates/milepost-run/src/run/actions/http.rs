//! A request over HTTP. The step's key travels in the header `Idempotency-Key`.

use async_trait::async_trait;
use milepost_models::{http_client, retry_after};
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::{env_headers, numbers, pairs, text};
use crate::graph::actions::Repeat;
use crate::run::action::{Action, After, Failed, Step};

/// How much of a response is kept unless the node says otherwise (1 MiB).
const MAX_RESPONSE_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub(super) struct Http {
    client: OnceCell<reqwest::Client>,
}

fn method(parameters: &Value) -> &str {
    let has_body = parameters.get("body").or_else(|| parameters.get("json")).is_some_and(|body| !body.is_null());
    text(parameters, "method").unwrap_or(if has_body { "POST" } else { "GET" })
}

#[async_trait]
impl Action for Http {
    fn repeat(&self, parameters: &Value) -> Repeat {
        match method(parameters) {
            "GET" | "HEAD" => Repeat::Harmless,
            "PUT" | "DELETE" => Repeat::Idempotent,
            _ => Repeat::Effect,
        }
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let parameters = &step.parameters;
        let wrong = |what: &str, error: String| Failed::Fatal(format!("{what}: {error}"));
        let client = self.client.get_or_try_init(|| async { http_client() }).await;
        let client = client.map_err(|error| Failed::Fatal(error.to_string()))?;
        let url = reqwest::Url::parse(text(parameters, "url").unwrap_or_default())
            .map_err(|error| wrong("the url", error.to_string()))?;
        let method = reqwest::Method::from_bytes(method(parameters).as_bytes())
            .map_err(|error| wrong("the method", error.to_string()))?;
        let mut request = client.request(method, url).header("idempotency-key", &step.key);
        for (name, value) in pairs(parameters, "headers") {
            request = request.header(name, value);
        }
        for (name, value) in env_headers(parameters)? {
            let value = reqwest::header::HeaderValue::from_str(&value);
            let mut value = value.map_err(|_| wrong("env_headers", format!("{name} has a value that is none")))?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        match (text(parameters, "body"), parameters.get("json").filter(|json| !json.is_null())) {
            (Some(body), _) => request = request.body(body.to_owned()),
            (None, Some(json)) => request = request.header("content-type", "application/json").body(json.to_string()),
            (None, None) => {}
        }
        let exchange = async {
            // Without a connection nothing was sent; after that, it may have arrived.
            let mut response =
                request.send().await.map_err(|error| match error.is_connect() || error.is_builder() {
                    true => Failed::Transient(told(&error)),
                    false => Failed::Uncertain(told(&error)),
                })?;
            step.progress();
            let limit = parameters.get("max_response_bytes").and_then(Value::as_u64).unwrap_or(MAX_RESPONSE_BYTES);
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let (mut body, mut truncated) = (Vec::new(), false);
            while let Some(chunk) = response.chunk().await.map_err(|error| Failed::Uncertain(told(&error)))? {
                step.progress();
                let room = limit.saturating_sub(body.len()).min(chunk.len());
                body.extend_from_slice(&chunk[..room]);
                if room < chunk.len() {
                    truncated = true;
                    break;
                }
            }
            Ok((response, body, truncated))
        };
        let (response, body, truncated) = tokio::select! {
            exchange = exchange => exchange?,
            () = step.cancel.cancelled() => return Err(Failed::Uncertain("it was told to end".to_owned())),
        };
        let status = response.status().as_u16();
        let ok = numbers(parameters, "ok");
        let is_ok = ok.map_or((200..300).contains(&status), |ok| ok.contains(&u64::from(status)));
        if !is_ok {
            let why = format!("the server answered with status {status}");
            // Whoever says when to come again is not asked before, and that is no failed attempt, whatever the status is.
            let now = step.parts.engine.source().now();
            let until = retry_after(response.headers(), now);
            let is_final = !matches!(status, 408 | 409 | 425 | 429 | 500..600);
            // Who refuses it, or is busy, says that nothing happened. Behind any other answer it may have.
            let is_refused = matches!(status, 400..500 | 503);
            return Err(match (is_refused, until, is_final) {
                (true, Some(until), _) => Failed::Limited { until, why },
                (true, None, true) => Failed::Fatal(why),
                (true, None, false) => Failed::Transient(why),
                (false, until, is_final) => Failed::AfterEffect(Box::new(After { why, output: None, is_final, until })),
            });
        }
        let headers: Map<String, Value> = response
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into()))
            .collect();
        let body = String::from_utf8_lossy(&body).into_owned();
        let parsed: Value = if truncated { Value::Null } else { serde_json::from_str(&body).unwrap_or_default() };
        Ok(json!({"status": status, "headers": headers, "body": body, "truncated": truncated, "json": parsed}))
    }
}

/// An error and its cause, without the URL, which may hold a secret.
fn told(error: &reqwest::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let what = match error {
        error if error.is_timeout() => "it took too long",
        error if error.is_connect() => "the server cannot be reached",
        _ => "the server was lost in the middle",
    };
    if cause.is_empty() { what.to_owned() } else { format!("{what}: {cause}") }
}
