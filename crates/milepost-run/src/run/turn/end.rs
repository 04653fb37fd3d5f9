//! How a turn ends: completed, waiting, paused or stopped, with what is noted stored before.

use std::time::Duration;

use milepost::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::{Log, Turn, after, noted};
use crate::run::End;
use crate::run::action::Failed;
use crate::run::error::{Error, Result};
use crate::run::ledger::{Entry, Status};

/// How often is looked for answers while other steps run, in milliseconds.
pub(super) const LOOK_MS: u64 = 1000;

impl Turn<'_> {
    /// Nothing runs. The end of the turn, or none when there is something to begin again.
    pub(super) async fn rest(&mut self) -> Result<Option<End>> {
        if self.runner.cancel.is_cancelled() {
            return self.stop().await.map(Some);
        }
        if let Some((node, why)) = self.pausing.take() {
            // Whatever else ended last: a resume enters here.
            if let Some(node) = &node {
                self.note_stop(node);
            }
            self.commit(None).await?;
            let told = node.as_ref().map_or_else(|| why.clone(), |node| format!("{node}: {why}"));
            self.pause(&told).await?;
            return Ok(Some(End::Paused { node, why }));
        }
        if let Some(changed) = self.changed.take() {
            self.commit(None).await?;
            self.pause(&changed.to_string()).await?;
            return Err(changed);
        }
        let now = self.now();
        let waiting: Vec<(String, Option<Timestamp>)> =
            self.ledger.waiting().map(|(id, entry)| (id.to_owned(), entry.until)).collect();
        let soonest = waiting.iter().filter_map(|(_, until)| *until).min();
        if let Some(until) = soonest {
            let ms = u64::try_from(until.since_ms(now)).unwrap_or(0);
            if ms <= self.runner.patience_ms {
                self.flush().await?;
                self.wake_in_case(until).await?;
                let renew = self.renew_every_ms();
                tokio::select! {
                    () = self.runner.timer.wait_ms(ms.max(1)) => {}
                    () = self.runner.cancel.cancelled() => {}
                    () = after(renew, |ms| tokio::time::sleep(Duration::from_millis(ms))) => self.renew().await?,
                }
                return Ok(None);
            }
        }
        let uncertain: Vec<(String, String)> = self
            .ledger
            .own()
            .filter(|(_, entry)| entry.status == Status::Uncertain)
            .flat_map(|(id, entry)| match self.uncertain.get(id).filter(|parts| !parts.is_empty()) {
                Some(parts) => parts.clone(),
                None => vec![(self.name(id), entry.key.clone())],
            })
            .collect();
        if !uncertain.is_empty() {
            let first =
                self.ledger.own().find(|(_, entry)| entry.status == Status::Uncertain).map(|(id, _)| id.to_owned());
            if let Some(first) = first {
                self.note_stop(&first);
            }
            self.commit(None).await?;
            let why = self.open_questions(&uncertain);
            self.pause(&why).await?;
            return Ok(Some(End::Uncertain { steps: uncertain }));
        }
        if !waiting.is_empty() {
            self.commit(None).await?;
            if self.look_again(&waiting).await? {
                return Ok(None);
            }
            let word = |id: &str| match self.waits.get(id).filter(|waits| !waits.is_empty()) {
                Some(waits) => waits.clone(),
                None => vec![(self.name(id), "the next attempt".to_owned())],
            };
            let what: Vec<(String, String)> = waiting.iter().flat_map(|(id, _)| word(id)).collect();
            let told: Vec<String> = what.iter().map(|(id, what)| format!("{id} waits for {what}")).collect();
            self.cross()?;
            if let Log::Session(session) = &self.log {
                // First the wake-up, then the wait: killed in between, the run is woken all the same.
                self.runner.note_wakeup(session.id(), soonest, self.heard.as_deref()).await?;
                self.cross()?;
            }
            if let Log::Session(session) = &self.log {
                session.wait(&told.join("; ")).await?;
            }
            self.cross()?;
            return Ok(Some(End::Waiting { until: soonest, what }));
        }
        self.complete().await.map(Some)
    }

    /// Why a run with uncertain steps does not go on.
    fn open_questions(&self, steps: &[(String, String)]) -> String {
        let line = |name: &str| self.ledger.node(name.strip_prefix(&self.parts.scope)?);
        let failed = |name: &str| line(name).filter(|entry| entry.happened).and_then(|entry| entry.error.clone());
        let unknown: Vec<&str> =
            steps.iter().map(|(name, _)| name.as_str()).filter(|name| failed(name).is_none()).collect();
        let failed = steps.iter().filter_map(|(name, _)| {
            Some(format!("{name} has had its effect, or may have, and failed after it: {}", failed(name)?))
        });
        let unknown =
            (!unknown.is_empty()).then(|| format!("nobody knows whether {} had its effect", unknown.join(", ")));
        let all: Vec<String> = failed.chain(unknown).collect();
        format!("{}; settle it", all.join("; "))
    }

    /// Whether it is worth it to look for answers beside what runs: something waits, and there is room for it.
    pub(super) fn is_looking(&self) -> bool {
        let is_open = self.pausing.is_none() && self.changed.is_none() && self.tasks.len() < self.graph.parallel;
        is_open && self.ledger.waiting().any(|(_, entry)| entry.status == Status::Waiting && entry.limits == 0)
    }

    /// Tries once more what waits, when somebody answered.
    pub(super) async fn look(&mut self) -> Result<()> {
        let waiting: Vec<(String, Option<Timestamp>)> =
            self.ledger.waiting().map(|(id, entry)| (id.to_owned(), entry.until)).collect();
        self.look_again(&waiting).await.map(drop)
    }

    /// Somebody answered while other steps ran: what waits is tried once more. True when there is something to try.
    async fn look_again(&mut self, waiting: &[(String, Option<Timestamp>)]) -> Result<bool> {
        let asked = self.runner.asked_to_wake(self.parts.session).await?;
        if asked.is_none() || asked == self.heard {
            return Ok(false);
        }
        self.heard = asked;
        for (id, _) in waiting {
            // Whoever said when to come again is not asked before, whatever a person answers.
            let is_open = |entry: &Entry| entry.status == Status::Waiting && entry.limits == 0;
            if let Some(mut entry) = self.ledger.node(id).cloned().filter(is_open) {
                (entry.status, entry.until) = (Status::Retrying, None);
                self.ledger.set_node(id, entry);
            }
        }
        Ok(true)
    }

    pub(super) async fn complete(&mut self) -> Result<End> {
        let names = Map::from_iter([
            ("memory".to_owned(), Value::Object(self.ledger.memory().clone())),
            ("outputs".to_owned(), Value::Object(self.ledger.outputs().clone())),
            ("session".to_owned(), self.parts.session.to_string().into()),
        ]);
        let mut outputs = Map::new();
        for (name, value) in self.graph.outputs.clone() {
            match value.evaluate(&names) {
                Ok(value) => drop(outputs.insert(name, value)),
                Err(why) => {
                    let why = format!("the output {name} cannot be evaluated: {why}");
                    self.commit(None).await?;
                    self.pause(&why).await?;
                    return Ok(End::Paused { node: None, why });
                }
            }
        }
        if let Log::Parent = self.log {
            self.commit(None).await?;
            return Ok(End::Completed { outputs });
        }
        self.event("run_completed", json!({"outputs": outputs}));
        self.commit(None).await?;
        self.cross()?;
        if let Log::Session(session) = &self.log {
            session.complete().await?;
        }
        self.cross()?;
        Ok(End::Completed { outputs })
    }

    /// Pauses the session, when it is this turn's.
    async fn pause(&mut self, why: &str) -> Result<()> {
        self.cross()?;
        if let Log::Session(session) = &self.log {
            session.pause(Some(why)).await?;
        }
        self.cross()
    }

    /// Ends what runs, with grace; what does not end in time stays without an outcome.
    pub(super) async fn stop(&mut self) -> Result<End> {
        self.running.values().for_each(|(cancel, _)| cancel.cancel());
        let grace = Duration::from_millis(self.runner.grace_ms);
        let ended = timeout(grace, async {
            loop {
                let ended = tokio::select! {
                    ended = self.tasks.join_next() => ended,
                    Some(note) = noted(&mut self.notes) => {
                        self.store_note(note).await?;
                        continue;
                    }
                };
                let Some(ended) = ended else { break };
                let Ok((number, result)) = ended else { continue };
                match result {
                    // Somebody is asked about its parts, or about what it gave.
                    result @ (Ok(_) | Err(Failed::Parts(_) | Failed::AfterEffect(_))) => {
                        self.ended(number, result).await?;
                        // The others may take their time.
                        self.flush().await?;
                    }
                    Err(failed) => {
                        self.hear(number);
                        self.cut_off(number, !matches!(failed, Failed::Uncertain(_)));
                    }
                }
            }
            Ok::<(), Error>(())
        })
        .await;
        if let Ok(Err(error)) = ended {
            return Err(error);
        }
        self.tasks.abort_all();
        let left: Vec<usize> = self.running.keys().copied().collect();
        left.into_iter().for_each(|number| self.cut_off(number, false));
        let uncertain = self.ledger.own().filter(|(_, entry)| entry.status == Status::Uncertain);
        let uncertain: Vec<(String, String)> =
            uncertain.map(|(id, entry)| (self.name(id), entry.key.clone())).collect();
        let why = match uncertain.is_empty() {
            true => "it was told to stop".to_owned(),
            false => format!("it was told to stop; {}", self.open_questions(&uncertain)),
        };
        self.commit(None).await?;
        self.pause(&why).await?;
        Ok(End::Stopped)
    }

    /// A step was told to end, and did before it was done. Where it did nothing, or may do it again, it is tried again, and this was
    /// no attempt; elsewhere nobody knows how far it came, which is noted now and not only when somebody goes on.
    fn cut_off(&mut self, number: usize, did_nothing: bool) {
        self.running.remove(&number);
        let id = self.graph.nodes[number].id.clone();
        let Some(mut entry) = self.ledger.node(&id).cloned().filter(|entry| entry.status == Status::Running) else {
            return;
        };
        if did_nothing || self.may_repeat(number) {
            entry.status = Status::Retrying;
            entry.attempt = entry.attempt.saturating_sub(1);
        } else {
            let why = "it was told to end";
            let told = json!({"node": self.name(&id), "key": entry.key, "runs_again": false, "why": why});
            self.event("step_uncertain", told);
            (entry.status, entry.error) = (Status::Uncertain, Some(why.to_owned()));
        }
        self.ledger.set_node(&id, entry);
    }
}
