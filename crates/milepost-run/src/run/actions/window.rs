//! As much of a conversation as a model is given: every message stays in the session.

use milepost::context::tokens::Tokenizer;
use milepost_model::{Message, Role};
use milepost_models::Request;

/// Leaves out of a request what has no room in a budget of tokens. What the conversation began with stays, and as much of
/// its end as fits. It is only cut before an answer, so that no call loses its result.
pub(super) fn fit(request: &mut Request, model: &str, budget: usize) {
    let size = |message: &Message| serde_json::to_vec(message).map_or(0, |bytes| bytes.len());
    // A token is a byte at least: most conversations need no counting.
    let bytes: usize = request.messages.iter().map(size).sum();
    if bytes <= budget {
        return;
    }
    let tokenizer = Tokenizer::for_model(model);
    let tools = serde_json::to_value(&request.tools).unwrap_or_default();
    let system = request.system.as_deref().unwrap_or_default();
    let Some((first, rest)) = request.messages.split_first() else { return };
    let around = tokenizer.count_text(system) + tokenizer.count_value(&tools) + tokenizer.count_message(first);
    let mut room = budget.saturating_sub(around);
    let mut begin = rest.len();
    for (number, message) in rest.iter().enumerate().rev() {
        let Some(left) = room.checked_sub(tokenizer.count_message(message)) else { break };
        room = left;
        if message.role == Role::Assistant {
            begin = number;
        }
    }
    // The last answer and what followed it are what the model is asked about.
    let last = rest.iter().rposition(|message| message.role == Role::Assistant).unwrap_or(0);
    let begin = begin.min(last);
    if begin == 0 {
        return;
    }
    let note = format!("{}\n\n({begin} messages after this one are left out.)", first.text());
    let shortened = Message::new(first.role.clone(), note);
    request.messages = std::iter::once(shortened).chain(rest[begin..].iter().cloned()).collect();
}
