//! What a model gets to see of a session, and what never reaches the store: valid history, token counts, requests
//! within a budget, compaction, redaction rules. Nothing here does I/O.

pub mod history;
pub mod redact;
pub mod tokens;
