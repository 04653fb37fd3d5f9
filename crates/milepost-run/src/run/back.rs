//! Going back: what happened after the point from which a run goes on would happen again, and is not let happen in silence.

use milepost::model::Body;
use milepost::store::backend::Timeline;
use milepost::{Point, Resume, SessionId};
use milepost_model::{Event, Position, Seq, State};
use serde_json::Value;

use super::Runner;
use super::error::{Error, Result};
use super::ledger::{Ledger, Status};
use crate::graph::Graph;
use crate::graph::actions::Repeat;

/// Where a run notes the timeline on which what happened before may happen again.
pub(super) const ACCEPTED: &str = "repeats";

/// A step that was begun after the point from which a run goes on.
pub(super) struct Begun {
    pub name: String,
    iteration: u32,
    pub key: String,
    action: String,
    /// What a second time means, as it was noted; nobody noted it in older logs.
    repeat: Option<String>,
    /// Whether it may have had its effect, as far as the events tell.
    had: bool,
}

impl Runner {
    /// Refuses to go on from before effects that may not be repeated, unless that was said.
    pub(super) async fn refuse_repeats(&self, id: SessionId, graph: &Graph, to: &State, how: &Resume) -> Result<()> {
        if self.repeats_effects {
            return Ok(());
        }
        let steps = self.repeats_from(id, graph, to, &how.point).await?;
        match steps.is_empty() {
            true => Ok(()),
            false => Err(Error::Repeats { steps }),
        }
    }

    /// The effects that going on would let happen again, though they may not be repeated by themselves: steps with their keys,
    /// also those inside of other steps, in the order in which they were begun.
    pub(super) async fn repeats(
        &self,
        id: SessionId,
        graph: &Graph,
        to: &State,
        how: &Resume,
    ) -> Result<Vec<(String, String)>> {
        let (_, point) = self.whole_to_resume(id, how).await?;
        self.repeats_from(id, graph, to, &point).await
    }

    async fn repeats_from(
        &self,
        id: SessionId,
        graph: &Graph,
        to: &State,
        point: &Point,
    ) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        let (left, known) = (self.left_behind(id, to, point).await?, Ledger::read(to)?);
        for (end, from) in left {
            let store = self.engine.store();
            if from > end.seq {
                continue;
            }
            let entries = self.events_until(end, from).await?;
            let events = entries.into_iter().filter_map(|entry| match entry.body {
                Some(Body::Event(event)) => Some(event),
                _ => None,
            });
            let happened = store.state_at(end).await.ok().and_then(|state| Ledger::read(&state).ok());
            let effects = self.effects(graph, events, happened.as_ref()).into_iter();
            all.extend(effects.filter(|step| !is_done(&known, step)).map(|step| (step.name, step.key)));
        }
        Ok(all)
    }

    /// The steps that events tell of which may have had an effect that may not be repeated. `happened` is the ledger behind the
    /// last of them.
    pub(super) fn effects(
        &self,
        graph: &Graph,
        events: impl IntoIterator<Item = Event>,
        happened: Option<&Ledger>,
    ) -> Vec<Begun> {
        let mut all = begun(events.into_iter());
        all.retain(|step| {
            let line = happened.and_then(|ledger| ledger.line(&step.name));
            let had = match line.filter(|line| line.key == step.key) {
                Some(line) => {
                    line.happened || matches!(line.status, Status::Completed | Status::Running | Status::Uncertain)
                }
                // The ledger has forgotten it: another round of a loop has begun.
                None => step.had,
            };
            had && self.is_effect(graph, step)
        });
        all
    }

    /// The ends of the timelines on which more happened than on the one that the run goes on with, and the first entries that
    /// are theirs alone: the head, and what follows the checkpoint, when the run is to go back; the timeline before, when the
    /// session was set back.
    async fn left_behind(&self, id: SessionId, to: &State, point: &Point) -> Result<Vec<(Position, Seq)>> {
        let store = self.engine.store();
        let head = store.session(id).await.map_err(milepost::Error::from)?.head;
        let is_latest = *point == Point::Latest;
        let accepted = to.pointer(&format!("/execution/{ACCEPTED}")).and_then(Value::as_str);
        if is_latest && accepted == Some(head.to_string().as_str()) {
            return Ok(Vec::new());
        }
        let lines = store.backend().timelines(store.workspace(), id).await.map_err(milepost::Error::from)?;
        let line = |id| lines.iter().find(|line| line.id == id);
        let end = |line: &Timeline| {
            let last = line.length.checked_sub(1)?;
            Some(Position { timeline: line.id, seq: Seq(last) })
        };
        let (at, left) = match is_latest {
            true => {
                let head = line(head);
                // A branch goes its own way: its parent is another session's.
                let before = head.and_then(|head| line(head.parent?.timeline));
                (head.and_then(end), vec![before])
            }
            false => {
                let at = self.engine.mark(id, point).await?.at;
                let own = line(at.timeline).filter(|own| own.id != head);
                (Some(at), vec![line(head), own])
            }
        };
        let Some(at) = at else { return Ok(Vec::new()) };
        let ends = left.into_iter().flatten().filter_map(end);
        Ok(ends.map(|end| (end, forked(&lines, at, end))).collect())
    }

    /// Whether a step may not be repeated by itself.
    fn is_effect(&self, graph: &Graph, step: &Begun) -> bool {
        let actions = self.all_actions();
        if let Some(number) = graph.find(&step.name) {
            let node = &graph.nodes[number];
            let written =
                || actions.get(&node.action).is_some_and(|action| action.repeat(&node.parameters) == Repeat::Effect);
            return match (node.idempotent, step.repeat.as_deref()) {
                (Some(is_idempotent), _) => !is_idempotent,
                // What it did counts, not what its file says today.
                (None, Some(word)) if word == Repeat::Effect.word() => true,
                (None, Some(word)) if word == Repeat::Harmless.word() => false,
                // It may be that only its file said so then.
                (None, _) => written(),
            };
        }
        // Without the node of the run that it is a part of, it does not happen again.
        let node = step.name.split(['/', '#']).next().unwrap_or_default();
        if graph.find(node).is_none() {
            return false;
        }
        match &step.repeat {
            Some(repeat) => repeat == Repeat::Effect.word(),
            None => !matches!(
                step.action.as_str(),
                "set" | "wait" | "ask" | "approve" | "model" | "agent" | "checks" | "graph"
            ),
        }
    }
}

/// The first entry of the timelines that lead to an end which does not lead to another position.
fn forked(lines: &[Timeline], to: Position, end: Position) -> Seq {
    let way = |mut at: Position| {
        let mut way = vec![at];
        // Timelines of another session, which a branch begins with, are not among them.
        while let Some(parent) = lines.iter().find(|line| line.id == at.timeline).and_then(|line| line.parent) {
            at = Position { seq: parent.seq.min(at.seq), ..parent };
            way.push(at);
        }
        way
    };
    let known = way(to);
    let shared = way(end).into_iter().find_map(|own| {
        let same = known.iter().find(|known| known.timeline == own.timeline)?;
        Some(same.seq.min(own.seq))
    });
    shared.unwrap_or(to.seq).next()
}

/// The steps that events tell of.
fn begun(events: impl Iterator<Item = Event>) -> Vec<Begun> {
    let mut all: Vec<Begun> = Vec::new();
    for event in events {
        let text = |key: &str| event.data.get(key).and_then(Value::as_str);
        let flag = |key: &str| event.data.get(key).and_then(Value::as_bool);
        let (Some(name), Some(key)) = (text("node"), text("key")) else { continue };
        let had = match event.kind.as_str() {
            "step_intent" | "step_uncertain" => true,
            "step_outcome" => flag("ok").unwrap_or(true) || flag("effect").unwrap_or(false),
            "step_settled" => flag("happened").unwrap_or(true),
            _ => continue,
        };
        if let Some(known) = all.iter_mut().rev().find(|step| step.key == key && step.name == name) {
            known.had = had;
        } else if event.kind == "step_intent" || event.kind == "step_outcome" && had {
            // Also where its intent is damaged, or lies before.
            let iteration = event.data.get("iteration").and_then(Value::as_u64).unwrap_or(0);
            all.push(Begun {
                name: name.to_owned(),
                iteration: u32::try_from(iteration).unwrap_or(u32::MAX),
                key: key.to_owned(),
                action: text("action").unwrap_or_default().to_owned(),
                repeat: text("repeat").map(str::to_owned),
                had,
            });
        }
    }
    all
}

/// Whether a run does not begin a step again that goes on with this ledger: there it, or what it is a part of, is done or in a later
/// round; or it is open under the same key, and asked about by itself.
fn is_done(ledger: &Ledger, step: &Begun) -> bool {
    let mut whole = String::new();
    for part in step.name.split('/') {
        let (id, round) = part.split_once('#').unwrap_or((part, "0"));
        let is_last = whole.len() + part.len() == step.name.len();
        let round = if is_last { step.iteration } else { round.parse().unwrap_or(0) };
        let Some(line) = ledger.line(&format!("{whole}{id}")) else { return false };
        if line.iteration > round || line.iteration == round && line.status == Status::Completed {
            return true;
        }
        if is_last && matches!(line.status, Status::Running | Status::Uncertain) && line.key == step.key {
            return true;
        }
        whole.push_str(part);
        whole.push('/');
    }
    false
}
