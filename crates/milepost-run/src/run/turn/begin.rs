//! Beginning steps: what can begin now is filled in, compared with what was recorded, noted and run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use milepost_models::Cancel;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::{Log, Turn, attempt};
use crate::graph::Node;
use crate::graph::actions::Repeat;
use crate::run::action::{Action, Failed, Step};
use crate::run::compare::differences;
use crate::run::error::{Error, Result};
use crate::run::input::{Saw, fill_step, hash, names, written};
use crate::run::ledger::{Entry, Status, scope};
use crate::run::parts::Parts;
use crate::run::{fill, flow, next_key, secrets, step_key};

/// A step's number, and how it ended.
type Ended = (usize, Result<Value, Failed>);

/// The parameters of a step, and what its templates see; or why they cannot be filled in.
type Filled = Result<(Value, Arc<Map<String, Value>>), String>;

impl Turn<'_> {
    pub(super) fn names(&self, number: usize, entry: &Entry) -> Map<String, Value> {
        names(&self.ledger, &self.graph.nodes[number], self.parts.session, entry)
    }

    /// Begins whatever can begin.
    pub(super) async fn begin(&mut self) -> Result<()> {
        // Steps that are done at once lead to others, however many there are.
        while self.begin_some().await? {}
        Ok(())
    }

    /// The nodes that can begin now. Those that no way leads to are skipped.
    fn ready(&mut self) -> Vec<usize> {
        let mut ready = Vec::new();
        loop {
            let touched = std::mem::take(&mut self.touched);
            let next = flow::next(&self.graph, &self.ledger, &self.incoming, touched);
            ready.extend(next.ready);
            if next.skipped.is_empty() {
                break;
            }
            next.skipped.into_iter().for_each(|number| self.skip(number));
        }
        // There may be no room for all of them.
        self.touched.extend(&ready);
        let now = self.now();
        let due = self.ledger.waiting().filter(|(_, entry)| {
            entry.until.is_none_or(|until| until <= now) && !(entry.status == Status::Waiting && entry.until.is_none())
        });
        ready.extend(due.filter_map(|(id, _)| self.graph.find(id)));
        ready
    }

    /// Begins what can begin now: intents of all of it in one batch, then the actions. True when there may be more.
    async fn begin_some(&mut self) -> Result<bool> {
        let all = self.ready();
        if let Some(why) = self.purse.empty() {
            // What runs comes to its end first.
            if !all.is_empty() && self.tasks.is_empty() {
                self.pausing = Some((None, why));
            }
            return Ok(false);
        }
        let room = self.graph.parallel.saturating_sub(self.tasks.len());
        let mut begun: Vec<(usize, Step, Arc<dyn Action>)> = Vec::new();
        let mut inline = false;
        for number in all.into_iter().take(room) {
            let node = self.graph.nodes[number].clone();
            let mut entry = self.entered(&node);
            // It was begun, and goes on: with what it was begun with.
            let is_open = !entry.input.is_empty() && !entry.free;
            let is_known = self.seen.contains_key(&number);
            let mut filled = self.filled(number, &entry, is_open);
            if let Some(why) = filled.as_ref().ok().and_then(|(parameters, names)| {
                let lost_by = Some(&self.lost_by).filter(|_| self.lost.contains(&node.id));
                secrets::missing(&node, &entry, parameters, names, self.parts.at.keys(), lost_by)
            }) {
                self.pausing = Some((Some(node.id.clone()), why));
                self.misses_secret = true;
                continue;
            }
            if is_open && !is_known && self.has_to_look_back(number, &entry, &filled) {
                let place = (self.parts.session, &self.parts.at);
                let saw = self.runner.saw(place, &self.name(&node.id), &node, &entry).await?;
                filled = match self.as_begun(number, &entry, filled, saw) {
                    Ok(filled) => filled,
                    Err(difference) => {
                        self.flush().await?;
                        self.changed = Some(Error::Changed { node: self.name(&node.id), difference });
                        continue;
                    }
                };
            }
            if let Ok((parameters, _)) = &filled
                && self.is_other(number, &entry, parameters)
            {
                // No attempt is open: it is another step, with a key of its own.
                entry.key = next_key(&entry.key);
                entry.since = self.now();
                filled = self.filled(number, &entry, false);
            }
            let (parameters, names) = match filled {
                Ok(filled) => filled,
                Err(why) => {
                    self.ledger.set_node(&node.id, entry);
                    self.ended(number, Err(Failed::Fatal(why))).await?;
                    inline = true;
                    continue;
                }
            };
            entry.input = self.input(number, &entry, &parameters);
            (entry.until, entry.error, entry.free, entry.happened) = (None, None, false, false);
            if node.action == "set" {
                self.ledger.set_node(&node.id, entry);
                for (key, value) in parameters.as_object().into_iter().flatten() {
                    self.ledger.remember(key, value.clone());
                }
                self.done(number, parameters).await?;
                inline = true;
                continue;
            }
            let Some(action) = self.actions.get(&node.action).cloned() else { continue };
            entry.status = Status::Running;
            let own = action.repeat(&parameters);
            entry.repeat = Some(own).filter(|own| *own != action.repeat(&written(&node, &entry)));
            let repeat = match node.idempotent {
                Some(true) => Repeat::Idempotent,
                Some(false) => Repeat::Effect,
                None => own,
            };
            self.event(
                "step_intent",
                json!({
                    "node": self.name(&node.id), "action": node.action, "iteration": entry.iteration, "attempt": entry.attempt,
                    "key": entry.key, "input": entry.input, "repeat": repeat.word(),
                }),
            );
            let step = self.step(&node, &entry, parameters, names);
            self.ledger.set_node(&node.id, entry);
            begun.push((number, step, action));
        }
        if begun.is_empty() {
            return Ok(inline && self.changed.is_none());
        }
        let mark = self.mark_before(&begun);
        self.commit(Some(mark)).await?;
        self.barrier().await;
        let is_alone = begun.len() == 1 && self.tasks.is_empty();
        for (number, step, action) in begun {
            let cancel = step.cancel.clone();
            let node = if step.parts.node.is_empty() { &step.node } else { &step.parts.node };
            self.said.insert(number, (Arc::clone(&step.said), node.clone()));
            let node = &self.graph.nodes[number];
            let whole = node.timeout_ms.or((node.action == "http").then_some(self.runner.http_timeout_ms));
            let (still, grace) = (node.no_progress_ms, self.runner.grace_ms);
            let is_quick = is_alone && action.is_quick();
            let mut work = Box::pin(async move { (number, attempt(action, step, whole, still, grace).await) });
            if is_quick && let Some(ended) = at_once(number, work.as_mut()) {
                self.at_once = Some(ended);
                continue;
            }
            let task = self.tasks.spawn(work);
            self.running.insert(number, (cancel, task.id()));
        }
        Ok(false)
    }

    /// A node's line of the ledger, with one attempt more.
    fn entered(&self, node: &Node) -> Entry {
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        if entry.status == Status::Pending || entry.timeline != self.parts.head {
            entry.key = step_key(self.parts.session, &self.parts.head, &self.name(&node.id), entry.iteration);
            entry.timeline.clone_from(&self.parts.head);
            entry.since = self.now();
            entry.attempt = 0;
            entry.input.clear();
        }
        entry.again = false;
        entry.attempt += 1;
        entry
    }

    /// The parameters of a step, filled in, and what its templates see. What an attempt saw that is open is seen again,
    /// whatever became of the memory since: it is the same step.
    fn filled(&mut self, number: usize, entry: &Entry, is_open: bool) -> Filled {
        let node = &self.graph.nodes[number];
        // What all steps gave may be much, and most steps use little of it.
        if is_plain(node, entry) {
            let names = Arc::new(Map::new());
            return Ok((fill_step(node, entry, &names)?, names));
        }
        if !is_open {
            self.seen.remove(&number);
        }
        let names = match self.seen.get(&number) {
            Some(seen) => {
                let mut names = (**seen).clone();
                names.insert("attempt".to_owned(), entry.attempt.into());
                Arc::new(names)
            }
            None => Arc::new(self.names(number, entry)),
        };
        let node = &self.graph.nodes[number];
        let filled = fill_step(node, entry, &names)?;
        if node.retry.attempts > 1 {
            self.seen.insert(number, Arc::clone(&names));
        }
        Ok((filled, names))
    }

    /// Whether a step that was begun has another input now, and somebody knows its key who takes what comes under it for the same. Also
    /// of a step that may be repeated.
    fn is_other(&self, number: usize, entry: &Entry, parameters: &Value) -> bool {
        let is_same = entry.input.is_empty() || entry.input == self.input(number, entry, parameters);
        !is_same && self.is_keyed(&self.graph.nodes[number].action, parameters)
    }

    /// Whether what the templates of a step see now that another turn began is not what they saw then, or its parts may see that.
    fn has_to_look_back(&self, number: usize, entry: &Entry, filled: &Filled) -> bool {
        let node = &self.graph.nodes[number];
        match filled {
            Ok((parameters, _)) => {
                let has_parts = matches!(node.action.as_str(), "agent" | "checks") && !is_plain(node, entry);
                has_parts || self.is_other(number, entry, parameters)
            }
            Err(_) => true,
        }
    }

    /// The parameters of a step that is open, as it was begun, whatever other steps did to the memory since. What somebody put
    /// there by hand is not passed over: where that makes it another step, the difference.
    fn as_begun(&mut self, number: usize, entry: &Entry, now: Filled, saw: Option<Saw>) -> Result<Filled, String> {
        let is_other = |turn: &Self, filled: &Filled| match filled {
            Ok((parameters, _)) => turn.is_other(number, entry, parameters),
            Err(_) => false,
        };
        let Some(saw) = saw else {
            return match is_other(self, &now) {
                true => Err("its parameters are others than those it was begun with".to_owned()),
                false => Ok(now),
            };
        };
        let names = saw.names_with(self.ledger.by_hand(), self.ledger.memory());
        self.seen.insert(number, Arc::new(names));
        let filled = self.filled(number, entry, true);
        if !is_other(self, &filled) {
            return Ok(filled);
        }
        let now = self.seen.remove(&number).map(|seen| fill_step(&self.graph.nodes[number], entry, &seen));
        let Some(Ok(now)) = now else { return Ok(filled) };
        Err(differences("", &saw.parameters, &now).join("; "))
    }

    /// The hash of a step's parameters, the same for every attempt.
    fn input(&self, number: usize, entry: &Entry, parameters: &Value) -> String {
        if entry.attempt <= 1 || is_plain(&self.graph.nodes[number], entry) {
            return hash(parameters);
        }
        let mut names = self.seen.get(&number).map_or_else(|| self.names(number, entry), |seen| (**seen).clone());
        names.insert("attempt".to_owned(), 1.into());
        // What cannot be filled in for the first attempt was not begun with it.
        fill_step(&self.graph.nodes[number], entry, &names).map_or_else(|_| hash(parameters), |first| hash(&first))
    }

    fn step(&self, node: &Node, entry: &Entry, parameters: Value, names: Arc<Map<String, Value>>) -> Step {
        let mut parts = Parts {
            at: self.parts.at.below(&node.id),
            scope: scope(&self.parts.scope, &node.id, entry.iteration),
            ..self.parts.clone()
        };
        if let Log::Session(_) = self.log {
            parts.node.clone_from(&node.id);
        }
        Step {
            session: self.parts.session,
            node: self.name(&node.id),
            iteration: entry.iteration,
            attempt: entry.attempt,
            key: entry.key.clone(),
            parameters,
            now: self.now(),
            since: entry.since,
            cancel: Cancel::new(),
            progress: Arc::new(Notify::new()),
            said: Arc::default(),
            parts,
            purse: Arc::clone(&self.purse),
            names,
            written: node.written.clone(),
        }
    }
}

/// Begins a step beside which nothing runs, to see whether it is done at once: then it needs no task of its own. One that
/// is not is begun as a task, which goes on from there.
fn at_once(number: usize, work: Pin<&mut (impl Future<Output = Ended> + Send)>) -> Option<Ended> {
    let begun = catch_unwind(AssertUnwindSafe(|| work.poll(&mut Context::from_waker(Waker::noop()))));
    match begun {
        Ok(Poll::Ready(ended)) => Some(ended),
        Ok(Poll::Pending) => None,
        Err(why) => {
            let said = why.downcast_ref::<&str>().copied().or_else(|| why.downcast_ref::<String>().map(String::as_str));
            let why = format!("its action broke off: it panicked: {}", said.unwrap_or("without a word"));
            Some((number, Err(Failed::Uncertain(why))))
        }
    }
}

/// Whether a step has nothing to fill in.
fn is_plain(node: &Node, entry: &Entry) -> bool {
    fill::is_plain(&node.parameters) && entry.replaced.as_ref().is_none_or(fill::is_plain)
}
