//! How a turn ends: completed, waiting, paused or stopped, with what is noted stored before.

use std::time::Duration;

use milepost::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::{Log, Turn, after, noted};
use crate::run::End;
use crate::run::error::{Error, Result};
use crate::run::ledger::Status;

impl Turn<'_> {
    /// Nothing runs. The end of the turn, or none when there is something to begin again.
    pub(super) async fn rest(&mut self) -> Result<Option<End>> {
        if self.runner.cancel.is_cancelled() {
            return self.stop().await.map(Some);
        }
        if let Some((node, why)) = self.pausing.take() {
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
            self.commit(None).await?;
            let names: Vec<&str> = uncertain.iter().map(|(id, _)| id.as_str()).collect();
            let why = format!("nobody knows whether {} had its effect: settle it", names.join(", "));
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

    /// Somebody answered while other steps ran: what waits is tried once more. True when there is something to try.
    async fn look_again(&mut self, waiting: &[(String, Option<Timestamp>)]) -> Result<bool> {
        let Log::Session(session) = &self.log else { return Ok(false) };
        let asked = self.runner.asked_to_wake(session.id()).await?;
        if asked.is_none() || asked == self.heard {
            return Ok(false);
        }
        self.heard = asked;
        for (id, _) in waiting {
            if let Some(mut entry) = self.ledger.node(id).cloned().filter(|entry| entry.status == Status::Waiting) {
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
                    Ok(output) => {
                        self.ended(number, Ok(output)).await?;
                        // The others may take their time.
                        self.flush().await?;
                    }
                    Err(_) => {
                        self.hear(number);
                        // It says itself that it did not come to its end: it is tried again, and this was no attempt.
                        let id = self.graph.nodes[number].id.clone();
                        let mut entry = self.ledger.node(&id).cloned().unwrap_or_default();
                        if self.may_repeat(number) {
                            entry.status = Status::Retrying;
                            entry.attempt = entry.attempt.saturating_sub(1);
                            self.ledger.set_node(&id, entry);
                        }
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
        self.commit(None).await?;
        self.pause("it was told to stop").await?;
        Ok(End::Stopped)
    }
}
