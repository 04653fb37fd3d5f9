//! How a turn ends: completed, waiting, paused or stopped, with what is noted stored before.

use std::time::Duration;

use milepost::Timestamp;
use milepost_models::Cancel;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::Turn;
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
            self.cross()?;
            self.session.pause(Some(&told)).await?;
            self.cross()?;
            return Ok(Some(End::Paused { node, why }));
        }
        let now = self.now();
        let waiting =
            self.ledger.nodes().filter(|(_, entry)| matches!(entry.status, Status::Retrying | Status::Waiting));
        let waiting: Vec<(String, Option<Timestamp>)> =
            waiting.map(|(id, entry)| (id.to_owned(), entry.until)).collect();
        let soonest = waiting.iter().filter_map(|(_, until)| *until).min();
        if let Some(until) = soonest {
            let ms = u64::try_from(until.since_ms(now)).unwrap_or(0);
            if ms <= self.runner.patience_ms {
                tokio::select! {
                    () = self.runner.timer.wait_ms(ms.max(1)) => {}
                    () = self.runner.cancel.cancelled() => {}
                }
                return Ok(None);
            }
        }
        let uncertain: Vec<(String, String)> = self
            .ledger
            .nodes()
            .filter(|(_, entry)| entry.status == Status::Uncertain)
            .map(|(id, entry)| (id.to_owned(), entry.key.clone()))
            .collect();
        if !uncertain.is_empty() {
            self.commit(None).await?;
            let names: Vec<&str> = uncertain.iter().map(|(id, _)| id.as_str()).collect();
            let why = format!("nobody knows whether {} had its effect: settle it", names.join(", "));
            self.cross()?;
            self.session.pause(Some(&why)).await?;
            self.cross()?;
            return Ok(Some(End::Uncertain { steps: uncertain }));
        }
        if !waiting.is_empty() {
            self.commit(None).await?;
            let word = |id: &str| self.waits.get(id).cloned().unwrap_or_else(|| "the next attempt".to_owned());
            let what: Vec<(String, String)> = waiting.iter().map(|(id, _)| (id.clone(), word(id))).collect();
            let told: Vec<String> = what.iter().map(|(id, what)| format!("{id} waits for {what}")).collect();
            self.cross()?;
            self.session.wait(&told.join("; ")).await?;
            self.cross()?;
            return Ok(Some(End::Waiting { until: soonest, what }));
        }
        self.complete().await.map(Some)
    }

    pub(super) async fn complete(&mut self) -> Result<End> {
        let names = Map::from_iter([
            ("memory".to_owned(), Value::Object(self.ledger.memory().clone())),
            ("outputs".to_owned(), Value::Object(self.ledger.outputs().clone())),
            ("session".to_owned(), self.session.id().to_string().into()),
        ]);
        let mut outputs = Map::new();
        for (name, value) in self.graph.outputs.clone() {
            match value.evaluate(&names) {
                Ok(value) => drop(outputs.insert(name, value)),
                Err(why) => {
                    let why = format!("the output {name} cannot be evaluated: {why}");
                    self.commit(None).await?;
                    self.cross()?;
                    self.session.pause(Some(&why)).await?;
                    self.cross()?;
                    return Ok(End::Paused { node: None, why });
                }
            }
        }
        self.event("run_completed", json!({"outputs": outputs}));
        self.commit(None).await?;
        self.cross()?;
        self.session.complete().await?;
        self.cross()?;
        Ok(End::Completed { outputs })
    }

    /// Ends what runs, with grace; what does not end in time stays without an outcome.
    pub(super) async fn stop(&mut self) -> Result<End> {
        self.cancels.values().for_each(Cancel::cancel);
        let grace = Duration::from_millis(self.runner.grace_ms);
        let _ = timeout(grace, async {
            while let Some(ended) = self.tasks.join_next().await {
                let Ok((number, result)) = ended else { continue };
                match result {
                    Ok(output) => self.ended(number, Ok(output)).await?,
                    Err(_) => {
                        // It says itself that it did not come to its end: it is tried again, and this was no attempt.
                        let id = self.graph.nodes[number].id.clone();
                        let mut entry = self.ledger.node(&id).cloned().unwrap_or_default();
                        let is_safe = self.is_harmless(&self.graph.nodes[number].action, &Value::Null)
                            || self.graph.nodes[number].idempotent == Some(true);
                        if is_safe {
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
        self.tasks.abort_all();
        self.commit(None).await?;
        self.cross()?;
        self.session.pause(Some("it was told to stop")).await?;
        self.cross()?;
        Ok(End::Stopped)
    }
}
