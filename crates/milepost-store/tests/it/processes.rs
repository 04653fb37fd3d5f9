//! Two and more processes on one file.

use serde::{Deserialize, Serialize};

use crate::child::Job;

/// What one of several processes does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Contend {}

pub async fn contend(_job: &Job, _part: &Contend) {}
