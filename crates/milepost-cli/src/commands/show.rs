//! One session, one checkpoint, or two compared.

use anyhow::Result;
use milepost::context::history::readable;
use milepost::model::{EntryKind, Seq};
use milepost::transfer::export::GraphPlace;
use milepost::{
    CheckpointId, Diff, Mark, MarkQuery, Message, MessageQuery, Milepost, Point, Salvaged, SessionId, SessionSummary,
    StoredMessage, Usage as Spent,
};
use serde_json::{Value, json};

use super::list::colored;
use crate::app::App;
use crate::out::{clip, count, plain, short};

/// So many messages are shown of a session.
const LAST_MESSAGES: usize = 5;
/// So many values of a state are shown before the rest is only counted.
const SHOWN_VALUES: usize = 50;

pub async fn show(app: &mut App, session: &str) -> Result<()> {
    let id = app.session_or_archived(session).await?;
    let engine = app.engine().await?;
    let info = engine.store().session(id).await.map_err(milepost::Error::from)?;
    let last = MessageQuery { last: Some(LAST_MESSAGES), ..MessageQuery::default() };
    let Salvaged { messages, damaged, lost } = engine.messages_past_damage(id, None, &last).await?;
    super::messages::tell_damage(app, &damaged);
    let state = engine.store().state(id).await;
    let lease = engine.store().lease(id).await.map_err(milepost::Error::from)?;
    // Those in the trash cannot be gone on from. What is damaged is told elsewhere.
    let marks = engine.store().marks(id, &MarkQuery::default()).await.unwrap_or_default();
    let hidden = match info.hidden {
        true if engine.store().is_unfinished(id).await.map_err(milepost::Error::from)? => {
            Some("an import that was not finished")
        }
        true => Some("it was deleted; this is what its branches share with it"),
        false => None,
    };
    // Without it where that cannot be read.
    let reason = engine.reason(&info).await.unwrap_or_default();
    let holder = lease.filter(|lease| lease.owner.is_some() && lease.until > app.out.now);
    if app.out.json {
        let mut value = serde_json::to_value(SessionSummary { reason, ..SessionSummary::of(info.clone()) })?;
        let last = messages.iter().rfind(|stored| milepost::beside(&stored.message.channel).is_none());
        value["lastMessage"] = json!(last.or(messages.last()).map(|stored| &stored.message));
        value["messages"] = messages.iter().map(message_json).collect();
        value["extra"] = Value::Object(info.extra.clone());
        value["holder"] = json!(holder.map(|lease| lease.holder));
        if let Some(why) = hidden {
            value["hidden"] = json!(why);
        }
        value["lastCheckpoint"] = json!(marks.first().map(|mark| mark.checkpoint.id));
        // Of those that were taken, which the count has.
        value["checkpointsKept"] = json!(marks.len());
        value["state"] = state.map(Value::from).unwrap_or(Value::Null);
        if !damaged.is_empty() {
            value["damaged"] = json!(damaged);
        }
        app.out.json(&value)?;
        return super::messages::must_have_all(id, lost);
    }
    let out = &app.out;
    let title =
        format!("{}  {}", out.styles.bold(&id.to_string()), info.title.as_deref().map(plain).unwrap_or_default());
    out.line(clip(title.trim_end(), out.width()))?;
    let mut facts = match hidden {
        Some(why) => vec![("hidden", out.styles.warn(why))],
        None => vec![("status", colored(app, info.status))],
    };
    let mut fact = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    fact("because", reason.as_deref().map(plain));
    fact("error", info.error.as_deref().map(plain));
    let name = Some(super::list::project(&info)).filter(|name| !name.is_empty());
    fact(
        "project",
        name.map(|name| match info.project.as_deref().map(plain) {
            Some(id) if id != name => format!("{name} ({id})"),
            _ => name,
        }),
    );
    fact("agent", info.agent.as_deref().map(plain));
    fact("feature", info.feature.as_deref().map(plain));
    fact("task", info.task.as_deref().map(plain));
    fact("stage", info.stage.as_deref().map(plain));
    fact("tags", (!info.tags.is_empty()).then(|| info.tags.iter().map(|tag| plain(tag)).collect::<Vec<_>>().join(" ")));
    fact("began", Some(out.time(info.created)));
    fact("active", Some(out.time(info.active)));
    fact("messages", Some(info.messages().to_string()));
    let taken = info.checkpoints;
    fact(
        "checkpoints",
        Some(match marks.len() as u64 {
            here if here < taken => format!("{here}, of {taken} that were taken"),
            _ => taken.to_string(),
        }),
    );
    fact("latest", marks.first().map(|mark| mark.checkpoint.id.to_string()));
    fact(
        "branch of",
        milepost::transfer::origin(&info).map(|branch| format!("{} at entry {}", branch.session, branch.at.seq.0)),
    );
    fact("held by", holder.map(|lease| plain(&lease.holder)));
    fact("trashed", info.trashed.map(|time| out.time(time)));
    fact(
        "state",
        Some(match &state {
            Ok(state) => sections(state.as_value()),
            Err(error) => out.styles.bad(&plain(&error.to_string())),
        }),
    );
    out.facts(&facts)?;
    if !messages.is_empty() {
        out.line("")?;
        for stored in &messages {
            show_message(app, stored)?;
        }
    }
    super::messages::must_have_all(id, lost)
}

/// The sections of a state with how many values each has.
fn sections(state: &Value) -> String {
    let Some(map) = state.as_object().filter(|map| !map.is_empty()) else { return "empty".to_owned() };
    let section = |(name, value): (&String, &Value)| match value {
        Value::Object(inner) => format!("{} ({})", plain(name), inner.len()),
        _ => plain(name),
    };
    map.iter().map(section).collect::<Vec<_>>().join(", ")
}

/// A message as JSON, with where it is and when it was said.
pub fn message_json(stored: &StoredMessage) -> Value {
    let mut value = serde_json::to_value(&stored.message).unwrap_or_default();
    value["timestamp"] = json!(stored.time.to_string());
    value["position"] = json!(stored.at);
    value
}

/// A message on one line.
pub fn show_message(app: &App, stored: &StoredMessage) -> Result<()> {
    let text = plain(&readable(&stored.message));
    let line =
        format!("{}  {}  {}", app.out.styles.dim(&app.out.time(stored.time)), role(app, &stored.message), text.trim());
    app.out.line(clip(&line, app.out.width()))
}

/// A role in its colour.
pub fn role(app: &App, message: &Message) -> String {
    let name = plain(message.role.as_str());
    match message.role {
        milepost::Role::User => app.out.styles.info(&name),
        milepost::Role::Assistant => app.out.styles.good(&name),
        _ => app.out.styles.warn(&name),
    }
}

/// A checkpoint as JSON.
pub fn mark_json(mark: &Mark) -> Value {
    let point = &mark.checkpoint;
    json!({
        "checkpoint_id": point.id,
        "session_id": mark.session,
        "number": point.number,
        "type": point.trigger,
        "created_at": mark.time.to_string(),
        "label": point.label,
        "description": point.description,
        "is_clean": point.clean,
        "can_resume_from": point.resumable.is_yes(),
        "resumable": point.resumable,
        "messages": point.messages(),
        "position": mark.at,
        "state_hash": point.state,
        "trashed_at": mark.trashed.map(|time| time.to_string()),
        "extra": point.extra,
    })
}

pub async fn inspect(app: &mut App, session: &str, checkpoint: &str, with_state: bool) -> Result<()> {
    let point: Point = checkpoint.parse()?;
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let mark = app.mark(&engine, id, &point).await?;
    let loaded = engine.store().load(mark.checkpoint.id).await.map_err(milepost::Error::from)?;
    if app.out.json {
        let mut value = mark_json(&loaded.mark);
        let place = GraphPlace::of(&loaded.state);
        value["current_node"] = place.current_node;
        value["next_node"] = place.next_node;
        value["execution_path"] = place.execution_path;
        value["accumulated_outputs"] = place.accumulated_outputs;
        // A run counts what it spent; others say what they measured.
        let spent = || loaded.state.section("execution")?.get("spent").cloned();
        value["metrics_snapshot"] = loaded.state.section("metrics").cloned().or_else(spent).unwrap_or_default();
        if with_state {
            value["memory"] = loaded.state.section("memory").cloned().unwrap_or(Value::Null);
            value["state"] = loaded.state.into_value();
        }
        return app.out.json(&value);
    }
    let out = &app.out;
    let point = &loaded.mark.checkpoint;
    out.line(out.styles.bold(&point.id.to_string()))?;
    let mut facts = vec![
        ("session", id.to_string()),
        ("trigger", plain(point.trigger.as_str())),
        ("taken", out.time(loaded.mark.time)),
        ("number", point.number.to_string()),
        ("messages", point.messages().to_string()),
        ("clean", if point.clean { "yes".to_owned() } else { out.styles.warn("no") }),
        (
            "resumable",
            match &point.resumable {
                milepost::model::Resumable::Yes => "yes".to_owned(),
                milepost::model::Resumable::No(why) => out.styles.warn(&format!("no: {}", plain(why))),
            },
        ),
    ];
    facts.extend(point.label.as_deref().map(|label| ("label", plain(label))));
    facts.extend(point.description.as_deref().map(|text| ("description", plain(text))));
    let place = GraphPlace::of(&loaded.state);
    facts.extend(place.current_node.as_str().map(|node| ("node", plain(node))));
    facts.extend(place.next_node.as_str().map(|node| ("next node", plain(node))));
    facts.push(("state", sections(loaded.state.as_value())));
    out.facts(&facts)?;
    if with_state {
        out.line("")?;
        out.json(loaded.state.as_value())?;
    }
    Ok(())
}

/// A checkpoint, and what came after it where a whole session was named.
struct Named {
    id: CheckpointId,
    after: Option<Later>,
}

/// A checkpoint named as SESSION, SESSION@CHECKPOINT, or by its id alone.
async fn named(app: &mut App, text: &str) -> Result<Named> {
    let engine = app.engine().await?;
    if let Ok(id) = text.parse::<CheckpointId>() {
        return Ok(Named { id, after: None });
    }
    let (session, point) = text.split_once('@').map_or((text, None), |(session, point)| (session, Some(point)));
    let id = match app.session(session).await {
        Err(error) if point.is_none() => {
            app.out.note(format!("a part of a checkpoint's id, or its label, goes with the session: SESSION@{text}"));
            return Err(error);
        }
        other => other?,
    };
    let mark = app.mark(&engine, id, &point.unwrap_or("latest").parse()?).await?;
    let mut after = None;
    if point.is_none() {
        let later = later(&engine, id, &mark).await;
        if !later.is_nothing() {
            app.out.note(format!(
                "{} has moved on by {} since its latest checkpoint, which is compared; to compare all of it: milepost checkpoint {}",
                short(id),
                later.in_words("message"),
                short(id)
            ));
        }
        after = Some(later);
    }
    Ok(Named { id: mark.checkpoint.id, after })
}

/// What came after a checkpoint of a session.
#[derive(Debug, Default)]
pub struct Later {
    pub messages: u64,
    pub state: bool,
}

impl Later {
    pub fn is_nothing(&self) -> bool {
        self.messages == 0 && !self.state
    }

    /// So many messages, each of them called so, and whether the state changed.
    pub fn in_words(&self, message: &str) -> String {
        match (self.messages, self.state) {
            (0, true) => "a change of its state".to_owned(),
            (messages, true) => format!("{} and a change of its state", count(messages, message)),
            (messages, false) => count(messages, message),
        }
    }
}

/// What came after a checkpoint of a session.
pub async fn later(engine: &Milepost, session: SessionId, mark: &Mark) -> Later {
    let entries = engine.store().entries(session, mark.at.seq.next(), Seq(u64::MAX)).await.unwrap_or_default();
    Later {
        messages: entries.iter().filter(|entry| entry.kind == EntryKind::Message).count() as u64,
        state: entries.iter().any(|entry| entry.kind == EntryKind::State),
    }
}

pub async fn diff(app: &mut App, a: &str, b: &str) -> Result<()> {
    let (a, b) = (named(app, a).await?, named(app, b).await?);
    let diff = app.engine().await?.diff(a.id, b.id).await?;
    if app.out.json {
        let side = |mark: &Mark, named: &Named| {
            let mut value = mark_json(mark);
            value["after"] = json!(named.after.as_ref().map(|later| later.messages));
            value
        };
        // What a whole session has since its checkpoint that is compared.
        let moved_on = |named: &Named| {
            let later = named.after.as_ref().filter(|later| !later.is_nothing());
            later.map(|later| json!({ "messages": later.messages, "state": later.state }))
        };
        let messages = |list: &[StoredMessage]| list.iter().map(message_json).collect::<Vec<_>>();
        return app.out.json(&json!({
            "a": side(&diff.a, &a), "b": side(&diff.b, &b), "common": diff.common,
            "onlyA": messages(&diff.only_a), "onlyB": messages(&diff.only_b),
            "state": diff.state, "usageA": diff.usage_a, "usageB": diff.usage_b,
            "movedOn": { "a": moved_on(&a), "b": moved_on(&b) },
        }));
    }
    show_diff(app, &diff)
}

fn show_diff(app: &App, diff: &Diff) -> Result<()> {
    let out = &app.out;
    let name = |mark: &Mark| {
        let label =
            mark.checkpoint.label.as_deref().map(plain).unwrap_or_else(|| plain(mark.checkpoint.trigger.as_str()));
        format!("{}@{}  {label}, {}", short(mark.session), short(mark.checkpoint.id), out.time(mark.time))
    };
    out.line(out.styles.bad(&clip(&format!("--- {}", name(&diff.a)), out.width())))?;
    out.line(out.styles.good(&clip(&format!("+++ {}", name(&diff.b)), out.width())))?;
    let line = |sign: char, stored: &StoredMessage| {
        let text =
            format!("{sign} {}: {}", plain(stored.message.role.as_str()), plain(&readable(&stored.message)).trim());
        clip(&text, out.width())
    };
    if diff.only_a.is_empty() && diff.only_b.is_empty() {
        out.line("messages: the same")?;
    } else {
        out.line(out.styles.bold("messages"))?;
        for stored in &diff.only_a {
            out.line(out.styles.bad(&line('-', stored)))?;
        }
        for stored in &diff.only_b {
            out.line(out.styles.good(&line('+', stored)))?;
        }
    }
    if diff.state.is_empty() {
        out.line("state: the same")?;
    } else {
        out.line(out.styles.bold("state"))?;
        for change in diff.state.iter().take(SHOWN_VALUES) {
            let sides = [('-', &change.before), ('+', &change.after)];
            for (sign, value) in sides.into_iter().filter_map(|(sign, value)| Some((sign, value.as_ref()?))) {
                let text =
                    clip(&format!("{sign} {} = {}", plain(&change.path), plain(&value.to_string())), out.width());
                out.line(if sign == '-' { out.styles.bad(&text) } else { out.styles.good(&text) })?;
            }
        }
        if let Some(more) = diff.state.len().checked_sub(SHOWN_VALUES).filter(|more| *more > 0) {
            out.line(format!("  … and {more} more values; --json has them all"))?;
        }
    }
    let spent = |usage: &Spent| format!("{} tokens, ${:.4}", usage.tokens(), usage.cost_usd);
    if diff.usage_a != diff.usage_b {
        out.line(format!("cost since they part: {} → {}", spent(&diff.usage_a), spent(&diff.usage_b)))?;
    }
    Ok(())
}
