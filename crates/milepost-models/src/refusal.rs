//! What a provider means when it says no: by status, by the error's type, and by its words.

use serde_json::Value;

use crate::limits::MAX_TOLD_CHARS;

/// The kinds of no that a caller treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Limit,
    Busy,
    Denied,
    NoCredit,
    TooLong,
    Other,
}

/// A provider's error, as it was told.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: u16,
    words: Vec<String>,
    pub message: String,
}

/// Reads the body of an error: `{"error": {"type", "code", "message"}}`, or whatever came.
pub(crate) fn read(status: u16, body: &Value) -> Refusal {
    let error = body.get("error").unwrap_or(body);
    let text = |key: &str| error.get(key).and_then(Value::as_str).map(str::to_owned);
    let code = error.get("code").or_else(|| error.get("status"));
    let coded = code.and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let message = text("message").or_else(|| text("detail")).or_else(|| error.as_str().map(str::to_owned));
    let message = message.unwrap_or_else(|| if error.is_null() { String::new() } else { error.to_string() });
    let status = if status == 200 { coded.unwrap_or(status) } else { status };
    Refusal { status, words: [text("type"), text("code")].into_iter().flatten().collect(), message }
}

impl Refusal {
    pub fn kind(&self) -> Refused {
        let is = |words: &[&str]| self.words.iter().any(|word| words.contains(&word.as_str()));
        let lower = self.message.to_ascii_lowercase();
        let says = |texts: &[&str]| texts.iter().any(|text| lower.contains(text));
        if is(&["insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active"])
            || self.status == 402
            || says(&["credit balance is too low"])
        {
            return Refused::NoCredit;
        }
        if self.status == 429 || is(&["rate_limit_error", "rate_limit_exceeded"]) {
            return Refused::Limit;
        }
        if matches!(self.status, 401 | 403) || is(&["authentication_error", "permission_error", "invalid_api_key"]) {
            return Refused::Denied;
        }
        if self.status == 413
            || is(&["context_length_exceeded", "request_too_large"])
            || self.status == 400 && says(&["prompt is too long", "maximum context length", "context window"])
        {
            return Refused::TooLong;
        }
        if matches!(self.status, 408 | 500..=599)
            || is(&["overloaded_error", "api_error", "server_error", "timeout_error"])
        {
            return Refused::Busy;
        }
        // An error in the middle of a stream of which nothing more is known may well not happen again.
        if self.status == 200 && !is(&["invalid_request_error", "not_found_error"]) {
            return Refused::Busy;
        }
        Refused::Other
    }

    /// What was said, with the status when there is one.
    pub fn why(&self) -> String {
        let word = self.words.first().map(String::as_str).unwrap_or_default();
        let named = match (self.message.trim(), word) {
            ("", "") => "it gave no reason".to_owned(),
            ("", word) => word.to_owned(),
            (message, "") => message.to_owned(),
            (message, word) => format!("{word}: {message}"),
        };
        if self.status == 200 { named } else { format!("status {}, {named}", self.status) }
    }
}

/// A text from outside for a line of ours: without control characters, not too long.
pub(crate) fn plain(text: &str) -> String {
    let mut out: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TOLD_CHARS).collect();
    if text.chars().nth(MAX_TOLD_CHARS).is_some() {
        out.push('…');
    }
    out
}
