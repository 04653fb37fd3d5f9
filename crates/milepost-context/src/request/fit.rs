//! Fits the parts of a request into its budget.
//!
//! The parts are taken in the order of their worth, each as far as there is room; at the end the
//! whole is counted once more, and what is still too much is shed piece by piece. So the budget
//! holds whatever the tokenizer makes of the seams.

use milepost_model::{Message, Role};

use super::{LeftOut, PartTokens, RequestError, RequestParts, render};
use crate::compact::Summary;
use crate::history::{Dialect, View, view};
use crate::tokens::{MESSAGE_OVERHEAD, Tokenizer};

/// A part of the context that has fewer tokens of room than this is left out rather than cut.
const LEAST_CUT: usize = 64;
/// The share of the budget that the newest messages keep from the context: one in so many.
const KEPT_FOR_MESSAGES: usize = 4;
/// The tokens of a part's title and of the lines around it.
const TITLE: usize = 8;
/// What stands where a text was cut.
const CUT: &str = "\n… (cut)";

/// The whole system prompt, with nothing shed.
pub(super) fn whole(parts: &RequestParts) -> String {
    let context: Vec<String> = render::context_parts(&parts.context).into_iter().map(|(_, text)| text).collect();
    let messages: Vec<String> = shown(parts).iter().map(render::message).filter(|text| !text.is_empty()).collect();
    let summary = parts.summary.as_ref().map(render::summary).unwrap_or_default();
    prompt(&render::agent(&parts.agent), &context, &summary, &messages)
}

/// The last messages that a request may show.
fn shown(parts: &RequestParts) -> &[Message] {
    let from = parts.messages.len().saturating_sub(parts.last_messages);
    parts.messages.get(from..).unwrap_or_default()
}

fn prompt(agent: &str, context: &[String], summary: &str, messages: &[String]) -> String {
    let titled = |title: &str, parts: &[String]| {
        if parts.is_empty() { String::new() } else { format!("# {title}\n\n{}", parts.join("\n\n")) }
    };
    render::join([agent, &titled("Context", context), summary, &titled("Recent conversation", messages)])
}

pub(super) struct Fit<'a> {
    parts: &'a RequestParts,
    budget: usize,
    tokenizer: &'a Tokenizer,
    agent: String,
    prompt_tokens: usize,
    /// Room that is left, by the sum of the parts.
    room: usize,
    summary: Option<Summary>,
    /// Name, text and tokens, the most important first.
    context: Vec<(String, String, usize)>,
    /// Text and tokens, the oldest first.
    messages: Vec<(String, usize)>,
    messages_out: usize,
    items_out: usize,
    context_out: Vec<LeftOut>,
}

impl<'a> Fit<'a> {
    pub(super) fn new(parts: &'a RequestParts, budget: usize, tokenizer: &'a Tokenizer) -> Result<Self, RequestError> {
        let agent = render::agent(&parts.agent);
        let too_large = |what, tokens| RequestError::TooLarge { what, tokens, budget };
        let prompt_tokens = tokenizer.count_text(&parts.user_prompt);
        let around = 2 * MESSAGE_OVERHEAD;
        if prompt_tokens + around > budget {
            return Err(too_large("the user's prompt", prompt_tokens + around));
        }
        let fixed = prompt_tokens + around + tokenizer.count_text(&agent);
        if fixed > budget {
            return Err(too_large("the agent's description with the user's prompt", fixed));
        }
        Ok(Self {
            parts,
            budget,
            tokenizer,
            agent,
            prompt_tokens,
            room: budget - fixed,
            summary: None,
            context: Vec::new(),
            messages: Vec::new(),
            messages_out: 0,
            items_out: 0,
            context_out: Vec::new(),
        })
    }

    /// Takes everything, when everything fits.
    pub(super) fn all(&mut self) -> bool {
        let fits = self
            .tokenizer
            .count_up_to(&whole(self.parts), self.budget)
            .is_some_and(|tokens| tokens + self.prompt_tokens + 2 * MESSAGE_OVERHEAD <= self.budget);
        if fits {
            self.room = usize::MAX / 2;
            self.summary();
            self.context();
            self.conversation();
        }
        fits
    }

    /// Takes the work progress, without what does not fit.
    pub(super) fn summary(&mut self) {
        let Some(mut summary) = self.parts.summary.clone() else { return };
        let mut tokens = self.tokenizer.count_text(&render::summary(&summary)) + 2;
        while tokens > self.room {
            // Never so many that one would have been enough: an item seldom has more than 64 tokens.
            let excess = (tokens - self.room) / 64 + 1;
            let shed = shed_items(&mut summary, excess);
            self.items_out += shed;
            if shed == 0 {
                return;
            }
            tokens = self.tokenizer.count_text(&render::summary(&summary)) + 2;
        }
        self.room -= tokens;
        self.summary = Some(summary);
    }

    /// Takes the parts of the context, the most important first.
    pub(super) fn context(&mut self) {
        let kept_free = self.newest(self.budget / KEPT_FOR_MESSAGES).min(self.room);
        let mut room = (self.room - kept_free).saturating_sub(TITLE);
        for (name, text) in render::context_parts(&self.parts.context) {
            let (text, tokens) = match self.tokenizer.count_up_to(&text, room.saturating_sub(2)) {
                Some(tokens) => (text, tokens + 2),
                None => {
                    let cut = cut(&text, room, self.tokenizer);
                    let why = match cut {
                        Some(_) => "cut to what the budget has room for",
                        None => "the budget has no room for it",
                    };
                    self.context_out.push(LeftOut { what: format!("context: {name}"), why: why.to_owned() });
                    match cut {
                        Some((text, tokens)) => (text, tokens),
                        None => continue,
                    }
                }
            };
            room = room.saturating_sub(tokens);
            self.context.push((name, text, tokens));
        }
        if !self.context.is_empty() {
            self.room = room + kept_free;
        }
    }

    /// The tokens of the newest messages that have at most `most` together.
    fn newest(&self, most: usize) -> usize {
        let mut sum = TITLE;
        for message in shown(self.parts).iter().rev() {
            // Whichever form they are shown in.
            let tokens = self.tokenizer.count_message(message) + MESSAGE_OVERHEAD;
            if sum + tokens > most {
                break;
            }
            sum += tokens;
        }
        if sum > TITLE { sum } else { 0 }
    }

    /// Takes messages, the newest first, until one does not fit.
    pub(super) fn conversation(&mut self) {
        let mut room = self.room.saturating_sub(TITLE);
        let mut taken = Vec::new();
        for message in shown(self.parts).iter().rev() {
            let text = render::message(message);
            if text.is_empty() {
                continue;
            }
            let Some(tokens) = self.tokenizer.count_up_to(&text, room.saturating_sub(2)) else { break };
            room = room.saturating_sub(tokens + 2);
            taken.push((text, tokens + 2));
        }
        let all = shown(self.parts).iter().filter(|message| !render::message(message).is_empty()).count();
        self.messages_out = all - taken.len();
        taken.reverse();
        self.messages = taken;
        self.room = room;
    }

    /// Sheds until the whole fits, seams and all.
    pub(super) fn settle(&mut self) {
        while self.total(&self.system_prompt()) > self.budget && self.shed() {}
    }

    fn shed(&mut self) -> bool {
        if !self.messages.is_empty() {
            self.messages.remove(0);
            self.messages_out += 1;
            return true;
        }
        if let Some((name, _, _)) = self.context.pop() {
            let why = "the budget has no room for it".to_owned();
            self.context_out.push(LeftOut { what: format!("context: {name}"), why });
            return true;
        }
        let shed = self.summary.as_mut().map_or(0, |summary| shed_items(summary, 1));
        self.items_out += shed;
        shed > 0 || self.summary.take().is_some()
    }

    pub(super) fn system_prompt(&self) -> String {
        let context: Vec<String> = self.context.iter().map(|(_, text, _)| text.clone()).collect();
        let messages: Vec<String> = self.messages.iter().map(|(text, _)| text.clone()).collect();
        let summary = self.summary.as_ref().map(render::summary).unwrap_or_default();
        prompt(&self.agent, &context, &summary, &messages)
    }

    pub(super) fn total(&self, system_prompt: &str) -> usize {
        self.tokenizer.count_text(system_prompt) + self.prompt_tokens + 2 * MESSAGE_OVERHEAD
    }

    pub(super) fn part_tokens(&self) -> PartTokens {
        PartTokens {
            agent: self.tokenizer.count_text(&self.agent),
            context: self.context.iter().map(|(_, _, tokens)| tokens).sum(),
            summary: self.summary.as_ref().map_or(0, |summary| self.tokenizer.count_text(&render::summary(summary))),
            messages: self.messages.iter().map(|(_, tokens)| tokens).sum(),
            user_prompt: self.prompt_tokens,
        }
    }

    pub(super) fn left_out(mut self) -> Vec<LeftOut> {
        let older = self.parts.messages.len() - shown(self.parts).len();
        let mut out = Vec::new();
        let mut add = |count: usize, what: &str, why: String| {
            if count > 0 {
                out.push(LeftOut { what: format!("{count} {what}"), why });
            }
        };
        add(older, "older messages", format!("only the last {} are shown", self.parts.last_messages));
        add(self.messages_out, "messages, the oldest", "the budget has no room for them".to_owned());
        add(self.items_out, "items of the work progress", "the budget has no room for them".to_owned());
        out.append(&mut self.context_out);
        out
    }

    /// The conversation as messages: the longest run from the end whose valid view fits.
    pub(super) fn window(&mut self, dialect: Dialect) -> (String, View, usize, usize) {
        let mut system_prompt = self.system_prompt();
        let shown = shown(self.parts);
        let prompt = Message::new(Role::User, self.parts.user_prompt.clone());
        let room = self.budget - self.total(&system_prompt).min(self.budget);
        let mut sum = 0;
        let fits = shown.iter().rev().take_while(|message| {
            sum += self.tokenizer.count_message(message);
            sum <= room
        });
        let mut from = shown.len() - fits.count();
        loop {
            let mut window = shown.get(from..).unwrap_or_default().to_vec();
            window.push(prompt.clone());
            let view = view(&window, dialect);
            let tokens = self.tokenizer.count_messages(view.messages.iter().map(|seen| &seen.message));
            let total = self.tokenizer.count_text(&system_prompt) + MESSAGE_OVERHEAD + tokens;
            if total <= self.budget || from >= shown.len() && !self.shed() {
                self.messages_out = from;
                return (system_prompt, view, total, tokens.saturating_sub(self.prompt_tokens + MESSAGE_OVERHEAD));
            }
            if from < shown.len() {
                from += 1;
            } else {
                system_prompt = self.system_prompt();
            }
        }
    }
}

/// Takes the least worthy items out of a summary; says how many there were.
fn shed_items(summary: &mut Summary, most: usize) -> usize {
    let lists = [
        &mut summary.completed_items,
        &mut summary.decisions,
        &mut summary.blockers,
        &mut summary.pending_items,
        &mut summary.pinned_facts,
    ];
    let mut left = most;
    for list in lists {
        let shed = left.min(list.len());
        list.drain(..shed);
        left -= shed;
    }
    most - left
}

/// The beginning of a text that has at most `room` tokens, cut at the end of a line.
fn cut(text: &str, room: usize, tokenizer: &Tokenizer) -> Option<(String, usize)> {
    if room < LEAST_CUT {
        return None;
    }
    // No token of the vocabularies is longer than 128 bytes.
    let most = text.floor_char_boundary(room.saturating_mul(128).min(text.len()));
    let text = text.get(..most)?;
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let fits = |end: &usize| {
        let short = text.get(..*end).unwrap_or_default();
        tokenizer.count_up_to(short, room - 16).is_some()
    };
    let lines = ends.partition_point(fits);
    let end = *ends.get(lines.checked_sub(1)?)?;
    let cut = format!("{}{CUT}", text.get(..end)?.trim_end());
    let tokens = tokenizer.count_text(&cut) + 2;
    (tokens <= room && end > 0).then_some((cut, tokens))
}
