//! Going back: what happened after the point from which a run goes on would happen again, and is not let happen in silence.

use milepost::{Point, Resume, SessionId};
use milepost_model::{Position, Seq, State};

use super::Runner;
use super::error::{Error, Result};
use super::ledger::{Ledger, Status};
use crate::graph::Graph;
use crate::graph::actions::Repeat;

/// Where a run notes the timeline on which what happened before may happen again.
pub(super) const ACCEPTED: &str = "repeats";

impl Runner {
    /// Refuses to go on from before effects that may not be repeated, unless that was said.
    pub(super) async fn refuse_repeats(&self, id: SessionId, graph: &Graph, to: &State, how: &Resume) -> Result<()> {
        if self.repeats_effects {
            return Ok(());
        }
        let steps = self.repeats(id, graph, to, how).await?;
        match steps.is_empty() {
            true => Ok(()),
            false => Err(Error::Repeats { steps }),
        }
    }

    /// The effects that going on would let happen again, though they may not be repeated by themselves.
    pub(super) async fn repeats(
        &self,
        id: SessionId,
        graph: &Graph,
        to: &State,
        how: &Resume,
    ) -> Result<Vec<(String, String)>> {
        Ok(match self.happened(id, to, how).await? {
            Some(happened) => self.beyond(graph, &Ledger::read(&happened)?, &Ledger::read(to)?),
            None => Vec::new(),
        })
    }

    /// The state with all that happened, when it is another than the one that the run goes on with: the head's, when the run
    /// is to go back; that of the timeline before, when the session was set back.
    async fn happened(&self, id: SessionId, to: &State, how: &Resume) -> Result<Option<State>> {
        let store = self.engine.store();
        if how.point != Point::Latest {
            // What cannot be read cannot be asked about.
            return Ok(store.state(id).await.ok());
        }
        let head = store.session(id).await.map_err(milepost::Error::from)?.head;
        let is_accepted = to.pointer(&format!("/execution/{ACCEPTED}")).and_then(|line| line.as_str());
        if is_accepted == Some(head.to_string().as_str()) {
            return Ok(None);
        }
        let lines = store.backend().timelines(store.workspace(), id).await.map_err(milepost::Error::from)?;
        let parent = lines.iter().find(|line| line.id == head).and_then(|line| line.parent);
        // A branch goes its own way: its parent is another session's.
        let before = parent.and_then(|at| lines.iter().find(|line| line.id == at.timeline));
        let Some(before) = before.filter(|before| before.length > 0) else { return Ok(None) };
        Ok(store.state_at(Position { timeline: before.id, seq: Seq(before.length - 1) }).await.ok())
    }

    /// The steps that had their effect in one ledger and not in the other, and that may not be repeated by themselves; each
    /// with its key.
    fn beyond(&self, graph: &Graph, happened: &Ledger, to: &Ledger) -> Vec<(String, String)> {
        let actions = self.all_actions();
        let may_not = |name: &str| match graph.find(name).map(|number| &graph.nodes[number]) {
            Some(node) => !node.idempotent.unwrap_or_else(|| {
                actions.get(&node.action).is_none_or(|action| action.repeat(&node.parameters) != Repeat::Effect)
            }),
            // Calls of an agent's tools: what they do is not known any more.
            None => name.rsplit('/').next().is_some_and(|part| part.split('.').count() > 2),
        };
        let is_beyond = |(name, entry): &(&str, &super::Entry)| {
            let had = matches!(entry.status, Status::Completed | Status::Running | Status::Uncertain);
            let is_known = to.line(name).is_some_and(|known| known.key == entry.key);
            had && !entry.key.is_empty() && !is_known && may_not(name)
        };
        happened.nodes().filter(is_beyond).map(|(name, entry)| (name.to_owned(), entry.key.clone())).collect()
    }
}
