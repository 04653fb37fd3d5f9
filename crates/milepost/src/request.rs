//! What is sent to a model: who the agent is, what it works on, how far it came, what was said last, what the user asks;
//! always within the budget, always valid.

use milepost_context::compact::Summarizer;
use milepost_context::history::Dialect;
use milepost_context::request::{
    AgentDescription, Context, MessagesRequest, Request, RequestError, RequestParts, build_messages, build_request,
    estimate_request_size,
};
use milepost_model::{Role, SessionId};
use serde_json::Value;

use crate::chapter::{Chapter, Compact, current};
use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::session::Session;

fn refused(error: RequestError) -> Error {
    Error::refused("building the request", error.to_string(), "or compact the session")
}

impl Milepost {
    /// What a request of this session is made of.
    pub async fn request_parts(&self, id: SessionId, user_prompt: &str) -> Result<RequestParts> {
        let session = self.store().session(id).await?;
        let state = self.store().state(id).await?;
        let (summary, begins) = current(&state);
        let (stored, _) = self.conversation(id, begins, self.last_messages()).await?;
        let messages = stored.into_iter().map(|stored| stored.message).collect();
        let kind = session.agent.as_deref().unwrap_or_default();
        let context = match state.section("context") {
            None | Some(Value::Null) => Context::None,
            Some(Value::String(text)) => Context::Text(text.clone()),
            Some(value) => Context::Structured(value.clone()),
        };
        Ok(RequestParts {
            agent: self.agent(kind).unwrap_or_else(|| described(kind, state.section("context"))),
            context,
            summary,
            messages,
            last_messages: self.last_messages(),
            user_prompt: user_prompt.to_owned(),
            reserve_tokens: self.reserve_tokens(),
        })
    }

    /// The tokens that a request would have, as the model counts them ([`crate::EngineOptions::model`]), with room for the
    /// user's prompt. Over the budget, it is time to compact.
    pub async fn estimate_request_size(&self, id: SessionId) -> Result<usize> {
        Ok(estimate_request_size(&self.request_parts(id, "").await?, &self.tokenizer()))
    }

    /// A request as two prompts, within the budget.
    pub async fn build_request(&self, id: SessionId, user_prompt: &str) -> Result<Request> {
        let parts = self.request_parts(id, user_prompt).await?;
        build_request(&parts, self.budget_tokens(), &self.tokenizer()).map_err(refused)
    }

    /// A request as a system prompt and messages that are valid for a model's rules, within the budget.
    pub async fn build_messages(&self, id: SessionId, user_prompt: &str, rules: Dialect) -> Result<MessagesRequest> {
        let parts = self.request_parts(id, user_prompt).await?;
        build_messages(&parts, rules, self.budget_tokens(), &self.tokenizer()).map_err(refused)
    }

    /// As [`Milepost::build_messages`], for what the user said last, which is in the session and has no answer; none when
    /// something else was said last.
    pub async fn build_unanswered(&self, id: SessionId, rules: Dialect) -> Result<Option<MessagesRequest>> {
        let mut parts = self.request_parts(id, "").await?;
        let Some(last) = parts.messages.pop_if(|last| last.role == Role::User) else { return Ok(None) };
        parts.user_prompt = last.text().into_owned();
        build_messages(&parts, rules, self.budget_tokens(), &self.tokenizer()).map(Some).map_err(refused)
    }
}

impl Session {
    /// Compacts when the next request would be over the budget; none when it would not be, or when there is nothing to
    /// summarise.
    pub async fn compact_if_needed(&self, how: &Compact, summarizer: &dyn Summarizer) -> Result<Option<Chapter>> {
        let size = self.engine().estimate_request_size(self.id()).await?;
        if size <= self.engine().budget_tokens() {
            return Ok(None);
        }
        let planned = match self.engine().plan_compaction(self.id(), how).await {
            Ok(planned) => planned,
            Err(Error::Refused { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let answer = planned.ask(summarizer)?;
        self.commit_compaction(&planned, &answer).await.map(Some)
    }
}

/// An agent of a kind that nobody described: what its own context says of it.
fn described(kind: &str, context: Option<&Value>) -> AgentDescription {
    let text = |names: &[&str]| {
        names.iter().find_map(|name| context?.get(*name)?.as_str()).map(str::to_owned).unwrap_or_default()
    };
    let list = |names: &[&str]| {
        let found = names.iter().find_map(|name| context?.get(*name)?.as_array());
        found.into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    AgentDescription {
        agent_type: kind.to_owned(),
        role: text(&["role", "systemPrompt", "system_prompt"]),
        instructions: list(&["instructions"]),
        allowed_tools: list(&["allowedTools", "allowed_tools"]),
        tool_instructions: Some(text(&["toolInstructions", "tool_instructions"])).filter(|text| !text.is_empty()),
    }
}
