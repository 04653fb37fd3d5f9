//! Adding, listing and following messages.

use std::borrow::Cow;
use std::io::{IsTerminal, Read};

use anyhow::Result;
use milepost::context::history::readable;
use milepost::model::Body;
use milepost::{
    Channel, Happened, Message, MessageQuery, Milepost, Point, Role, Salvaged, SessionId, StoredMessage, parse_message,
};
use serde_json::json;

use super::show::{message_json, role};
use crate::app::{App, apart};
use crate::args::Messages;
use crate::errors::{Failed, OnFile, Usage};
use crate::out::{count, plain, safe, short};

/// The most bytes that are read from the input for one message.
const MAX_INPUT_BYTES: u64 = 64 << 20;

pub async fn run(app: &mut App, command: Messages) -> Result<()> {
    match command {
        Messages::Add { session, text, role, from_json, channel } => {
            let text = match text.as_deref() {
                Some("-") | None => input(app, "the message").await?,
                Some(text) => text.to_owned(),
            };
            let healed = if from_json { heal(&text) } else { Cow::Borrowed(text.as_str()) };
            if let Cow::Owned(_) = healed {
                app.out.note(format!(
                    "{} half characters (lone surrogates) and bare control characters are no JSON: U+FFFD stands for the first",
                    app.styles().warn("warning:")
                ));
            }
            let messages = read(&healed, &role, from_json, channel.as_deref())?;
            add(app, &session, messages).await
        }
        Messages::List { session, last, all, channel, checkpoint, reveal } => {
            let id = app.session(&session).await?;
            let found = list(app, id, (!all).then_some(last), channel.as_deref(), checkpoint.as_deref()).await?;
            let Salvaged { messages, damaged, lost } = found;
            let messages = if reveal { app.engine().await?.reveal_messages(messages).await? } else { messages };
            put_all(app, id, &messages, &damaged, lost)?;
            if !all && messages.len() == last && checkpoint.is_none() && channel.is_none() {
                tell_rest(app, id, messages.len()).await?;
            }
            must_have_all(id, lost)
        }
        Messages::Tail { session, last, no_follow, reveal } => tail(app, &session, last, no_follow, reveal).await,
    }
}

/// Everything from the input, up to a limit.
pub async fn input(app: &App, what: &str) -> Result<String> {
    if std::io::stdin().is_terminal() {
        app.out.note(format!("write {what}; Ctrl-D on a line of its own ends it"));
    }
    let bytes = apart(|| {
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes).on_file("reading the input")?;
        Ok(bytes)
    });
    let bytes = bytes.await?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(Usage(format!(
            "the input has more than {MAX_INPUT_BYTES} bytes (MAX_INPUT_BYTES): import it instead"
        ))
        .into());
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Usage("the input is not text: it is not in UTF-8; convert it, or import it as a file".into()))?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

fn read(text: &str, role: &str, from_json: bool, channel: Option<&str>) -> Result<Vec<Message>> {
    let mut messages = if from_json { parse(text)? } else { vec![Message::new(Role::from(role.to_owned()), text)] };
    if let Some(channel) = channel {
        let channel = Channel::new(channel).map_err(|error| Usage(error.to_string()))?;
        messages.iter_mut().for_each(|message| message.channel = channel.clone());
    }
    if messages.iter().all(|message| message.text().is_empty()) && !from_json {
        return Err(Usage("the message is empty, nothing was added: give a text".into()).into());
    }
    Ok(messages)
}

/// JSON without half characters and bare control characters, line by line: what is on another line is another message.
/// What is JSON already, or is none for another reason, stays.
fn heal(text: &str) -> Cow<'_, str> {
    if serde_json::from_str::<serde_json::Value>(text).is_ok() {
        return Cow::Borrowed(text);
    }
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(milepost::context::history::heal_json).collect();
    match lines.iter().any(|line| matches!(line, Cow::Owned(_))) {
        true => Cow::Owned(lines.join("\n")),
        false => Cow::Borrowed(text),
    }
}

/// Whether a text is JSON, or each of its lines is.
fn is_lines_of_json(text: &str) -> bool {
    let is_json = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    is_json(text) || text.lines().filter(|line| !line.trim().is_empty()).all(is_json)
}

/// What is wrong with a JSON text, without the place: that is counted in the line alone.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(why, _)| why.to_owned())
}

/// One message, a list of them, or one a line. What is wrong is named with its place in the input.
fn parse(text: &str) -> Result<Vec<Message>> {
    let form = "write {\"role\": \"user\", \"content\": \"…\"}, a list of them, or one a line";
    let wrong = |line: usize, error: &serde_json::Error| {
        let (why, column) = (without_place(error), error.column());
        Usage(format!("line {line}, column {column} is not a message: {why}; {form}; nothing was added"))
    };
    if let Some(number) = milepost::too_large(text)
        && is_lines_of_json(text)
    {
        return Err(Usage(format!(
            "the whole number {number} is beyond {} to {}, and would be rounded; write it as a text, in double quotes; nothing was added",
            i64::MIN,
            u64::MAX
        ))
        .into());
    }
    let is_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    let places: Vec<(String, serde_json::Value)> = match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Array(items)) => {
            (1..).zip(items).map(|(number, item)| (format!("message {number} of the list"), item)).collect()
        }
        Ok(value) => vec![("the message".to_owned(), value)],
        // A value that goes over several lines is no list of lines: what is wrong with it as a whole is what is wrong.
        Err(error) if !text.lines().find(|line| !line.trim().is_empty()).is_some_and(is_json) => {
            return Err(wrong(error.line(), &error).into());
        }
        Err(_) => {
            let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
            let read = |(number, line): (usize, &str)| match serde_json::from_str(line) {
                Ok(value) => Ok((format!("line {number}"), value)),
                Err(error) => Err(wrong(number, &error)),
            };
            lines.map(read).collect::<Result<_, _>>()?
        }
    };
    let is_only = places.len() == 1;
    let read = |(place, value)| {
        parse_message(value).map_err(|error| match (error, is_only) {
            (error, true) => error.into(),
            (error, false) => Usage(format!("{place}: {error}; nothing was added")).into(),
        })
    };
    places.into_iter().map(read).collect()
}

async fn add(app: &mut App, session: &str, messages: Vec<Message>) -> Result<()> {
    let id = app.session_to_write(session).await?;
    let held = app.engine().await?.hold(id).await?;
    let added = messages.len();
    let waiting = app.waiting("adding messages");
    let done = held.append_many(messages).await;
    waiting.end();
    let info = held.info().await;
    let appended = super::give_back_with_caution(app, held, done).await?;
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": id, "position": appended.first, "checkpointId": appended.checkpoint, "messageCount": info.messages(),
        }));
    }
    let with = appended.checkpoint.map(|id| format!(", with checkpoint {id}")).unwrap_or_default();
    let what = if added == 1 { "message".to_owned() } else { format!("{added} messages") };
    app.out.line(format!("added {what} to {id}: {} in all{with}", info.messages()))
}

async fn list(
    app: &mut App,
    id: SessionId,
    last: Option<usize>,
    channel: Option<&str>,
    checkpoint: Option<&str>,
) -> Result<Salvaged> {
    let channel = channel.map(Channel::new).transpose().map_err(|error| Usage(error.to_string()))?;
    let engine = app.engine().await?;
    let query = MessageQuery { last, channel, ..MessageQuery::default() };
    let at = match checkpoint {
        Some(text) => Some(app.mark(&engine, id, &text.parse::<Point>()?).await?.at),
        None => None,
    };
    Ok(engine.messages_past_damage(id, at, &query).await?)
}

/// Says how many messages there are besides those that were shown.
async fn tell_rest(app: &mut App, id: SessionId, shown: usize) -> Result<()> {
    let engine = app.engine().await?;
    let info = engine.store().session(id).await.map_err(milepost::Error::from)?;
    let there = info.counts.get(&Channel::MAIN).copied().unwrap_or(0);
    if there > shown as u64 {
        app.out.note(format!("the last {shown} of {there} messages; --all shows every one"));
    }
    Ok(())
}

/// Says what could not be read, and what to do.
pub fn tell_damage(app: &App, damaged: &[String]) {
    for damaged in damaged {
        let what = plain(damaged);
        app.out.note(format!("{} {what}: it is left out here", app.styles().warn("warning:")));
    }
}

/// Fails when a message may be among what could not be read.
pub fn must_have_all(id: SessionId, lost: u64) -> Result<()> {
    match lost {
        0 => Ok(()),
        lost => Err(Failed::damaged(format!(
            "{} of session {id} could not be read: what was shown is all that is whole; `milepost verify {}` shows how far it goes",
            count(lost, "entry"),
            short(id)
        ))
        .into()),
    }
}

/// Messages with their whole texts, and what between them is damaged.
pub fn put_all(app: &App, id: SessionId, messages: &[StoredMessage], damaged: &[String], lost: u64) -> Result<()> {
    if app.out.json {
        let list: Vec<_> = messages.iter().map(message_json).collect();
        let tokens: u64 = messages.iter().map(|stored| milepost::Usage::of(&stored.message).tokens()).sum();
        let last = messages.last().map(|stored| stored.time.to_string());
        let mut value = json!({ "sessionId": id, "messages": list, "totalTokens": tokens, "lastMessageAt": last });
        if !damaged.is_empty() {
            value["damaged"] = json!(damaged);
            // What decides the exit code: a damaged checkpoint takes no message away.
            value["messagesLost"] = json!(lost);
        }
        return app.out.json(&value);
    }
    tell_damage(app, damaged);
    messages.iter().try_for_each(|stored| show(app, stored))
}

/// A message with its whole text.
fn show(app: &App, stored: &StoredMessage) -> Result<()> {
    let channel = if stored.message.channel.is_main() {
        String::new()
    } else {
        format!("  #{}", safe(stored.message.channel.as_str()))
    };
    app.out.line(format!(
        "{}  {}{channel}",
        role(app, &stored.message),
        app.out.styles.dim(&app.out.time(stored.time))
    ))?;
    for line in safe(&readable(&stored.message)).lines() {
        app.out.line(format!("  {line}"))?;
    }
    Ok(())
}

async fn tail(app: &mut App, session: &str, last: usize, no_follow: bool, reveal: bool) -> Result<()> {
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let mut following = engine.follow(id, None).await?;
    let query = MessageQuery { last: Some(last), ..MessageQuery::default() };
    let Salvaged { messages, damaged, lost } = engine.messages_past_damage(id, None, &query).await?;
    tell_damage(app, &damaged);
    let mut seen = messages.last().map(|stored| stored.at);
    for stored in messages {
        put(app, &engine, stored, reveal).await?;
    }
    if no_follow {
        return must_have_all(id, lost);
    }
    loop {
        let Some(happened) = following.next().await? else { break };
        app.out.now = engine.source().now();
        match happened {
            Happened::Removed => {
                app.out.note("the session was deleted");
                break;
            }
            Happened::Restored { from } => {
                app.out.note(format!("the session was set back; it goes on at entry {}", from.0));
                seen = None;
            }
            Happened::Entries(entries) => {
                for entry in entries {
                    // What was listed at the start may come once more.
                    if seen.is_some_and(|seen| seen.timeline == entry.at.timeline && entry.at.seq <= seen.seq) {
                        continue;
                    }
                    if let Some(Body::Message(message)) = entry.body {
                        let stored = StoredMessage { at: entry.at, time: entry.time, message };
                        put(app, &engine, stored, reveal).await?;
                    }
                }
            }
        }
    }
    Ok(())
}

async fn put(app: &App, engine: &Milepost, stored: StoredMessage, reveal: bool) -> Result<()> {
    let shown = if reveal { engine.reveal_messages(vec![stored]).await? } else { vec![stored] };
    shown.iter().try_for_each(|stored| match app.out.json {
        true => app.out.json_line(&message_json(stored)),
        false => show(app, stored),
    })
}
