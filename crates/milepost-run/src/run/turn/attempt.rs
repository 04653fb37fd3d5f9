//! One attempt of a step, within its times.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::run::action::{Action, Failed, Step};

/// One attempt, within its times. When a time is over the action is told to end, and after a grace time dropped.
pub(in crate::run) async fn attempt(
    action: Arc<dyn Action>,
    step: Step,
    whole_ms: Option<u64>,
    still_ms: Option<u64>,
    grace_ms: u64,
) -> Result<Value, Failed> {
    let (cancel, progress) = (step.cancel.clone(), step.progress.clone());
    let mut running = action.run(step);
    let over = async {
        match whole_ms {
            Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            None => std::future::pending().await,
        }
    };
    let still = async {
        let Some(ms) = still_ms else { return std::future::pending().await };
        while timeout(Duration::from_millis(ms), progress.notified()).await.is_ok() {}
    };
    let why = tokio::select! {
        ended = &mut running => return ended,
        () = over => format!("it took longer than its timeout, {} ms", whole_ms.unwrap_or(0)),
        () = still => format!("it gave no sign of life for {} ms", still_ms.unwrap_or(0)),
    };
    cancel.cancel();
    match timeout(Duration::from_millis(grace_ms), running).await {
        // What it did in its last moments is done.
        Ok(Ok(value)) => Ok(value),
        // It says that it did nothing that matters.
        Ok(Err(Failed::Transient(_) | Failed::Said { .. } | Failed::Fatal(_))) => Err(Failed::Transient(why)),
        // How far it came, nobody knows.
        _ => Err(Failed::Uncertain(why)),
    }
}
