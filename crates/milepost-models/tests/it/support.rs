//! Models that talk to a test's server.

use std::sync::Arc;

use milepost_model::{ManualClock, Message, Role, Source, Timestamp};
use milepost_models::{Cancel, Error, Model, ModelConfig, Outcome, Piece, Provider, Request, Timeouts, Timer};

use crate::server::Server;

pub const NOW: Timestamp = Timestamp(1_792_000_000_000);
pub const KEY: &str = "sk-test-0123456789abcdef";

pub fn source() -> Source {
    Source::seeded(7, Arc::new(ManualClock::new(NOW)))
}

pub fn config(server: &Server, provider: Provider) -> ModelConfig {
    let model = if provider == Provider::Anthropic { "claude-sonnet-5-5" } else { "gpt-6-sol" };
    let mut config = ModelConfig::new(provider, model);
    config.base_url = Some(server.url.clone());
    config
}

pub fn open(config: &ModelConfig) -> Arc<dyn Model> {
    config.open(&|name| name.ends_with("_API_KEY").then(|| KEY.to_owned()), &source(), Timer::none()).unwrap()
}

pub fn model(server: &Server, provider: Provider) -> Arc<dyn Model> {
    open(&config(server, provider))
}

/// A model that waits only a moment for what never comes.
pub fn hasty(server: &Server, provider: Provider) -> Arc<dyn Model> {
    let mut config = config(server, provider);
    config.timeouts = Timeouts { first_byte_ms: 80, progress_ms: 80, ..Timeouts::default() };
    open(&config)
}

pub fn question() -> Request {
    Request::new(vec![Message::new(Role::User, "What is the weather in Zürich?")])
}

/// Asks and writes down what was heard.
pub async fn ask_heard(model: &dyn Model, request: &Request) -> (Result<Outcome, Error>, Vec<String>) {
    let mut heard = Vec::new();
    let mut listen = |piece: Piece<'_>| {
        heard.push(match piece {
            Piece::Text(text) => format!("text {text}"),
            Piece::Thinking(text) => format!("thinking {text}"),
            Piece::Call { id, name } => format!("call {id} {name}"),
            Piece::Input(text) => format!("input {text}"),
            other => format!("{other:?}"),
        });
    };
    let outcome = model.ask(request, &Cancel::new(), &mut listen).await;
    (outcome, heard)
}

pub async fn ask(model: &dyn Model) -> Result<Outcome, Error> {
    ask_heard(model, &question()).await.0
}
