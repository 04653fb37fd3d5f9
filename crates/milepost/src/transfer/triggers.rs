//! One trigger, many names: what other designs call the reason for a checkpoint, and back.

use milepost_model::Trigger;

/// A's `reason`.
pub(super) fn reason(trigger: &Trigger) -> &'static str {
    match trigger {
        Trigger::Manual | Trigger::Milestone => "manual",
        Trigger::Pause | Trigger::RateLimit => "pause",
        Trigger::Error => "error",
        _ => "periodic",
    }
}

/// B's `reason` and `createdBy`.
pub(super) fn task_reason(trigger: &Trigger) -> (&'static str, &'static str) {
    match trigger {
        Trigger::Manual | Trigger::Milestone | Trigger::Pause => ("user_pause", "user"),
        Trigger::RateLimit => ("rate_limit", "system"),
        Trigger::PhaseComplete => ("phase_complete", "system"),
        Trigger::Error => ("error", "system"),
        Trigger::Initial | Trigger::Final => ("interval", "system"),
        _ => ("interval", "auto"),
    }
}

/// C's `triggerType`.
pub(super) fn trigger_type(trigger: &Trigger) -> &'static str {
    match trigger {
        Trigger::Manual | Trigger::Milestone | Trigger::Pause => "manual",
        Trigger::RateLimit | Trigger::Error => "error",
        _ => "auto",
    }
}

/// E's `checkpoint_type`. A session's first checkpoint has no name there: it is the start of the first node.
pub(super) fn checkpoint_type(trigger: &Trigger) -> &'static str {
    match trigger {
        Trigger::Step | Trigger::NodeComplete | Trigger::PhaseComplete | Trigger::Final => "node_complete",
        Trigger::EdgeTransition => "edge_transition",
        Trigger::LoopIteration | Trigger::Messages | Trigger::Interval => "loop_iteration",
        Trigger::SafePoint | Trigger::Manual | Trigger::Milestone | Trigger::Smart => "safe_point",
        Trigger::UserCheckpoint | Trigger::Pause | Trigger::Restore => "user_checkpoint",
        Trigger::Initial | Trigger::NodeStart | Trigger::RateLimit | Trigger::Error | Trigger::Other(_) => "node_start",
    }
}

/// The nearest trigger to the name that another design uses.
pub(super) fn nearest(name: &str) -> Trigger {
    match name {
        "periodic" | "auto" => Trigger::Interval,
        "user_pause" => Trigger::Pause,
        // The other names are ours, or nobody's.
        own => Trigger::from(own.to_owned()),
    }
}
