//! Graphs and plans: read, checked, drawn, and run step by durable step.
//!
//! [`graph`] is the file: every mistake is found before the run. [`run`] is the run: each step is recorded before and after,
//! so that whoever resumes it, after a crash or a month, skips what is done and never silently repeats an effect.
//!
//! ```
//! use milepost_run::graph::{check, draw};
//!
//! let text = "
//! nodes:
//!   search: {action: http, with: {url: https://example.com/papers}}
//!   read: {action: shell, with: {command: 'printf %s {{ outputs.search.body }} | wc -l'}}
//! edges:
//!   - {from: search, to: read, when: output.status == 200}
//! ";
//! let checked = check("papers.yaml".as_ref(), text, &[]);
//! let graph = checked.graph.unwrap();
//! assert!(draw(&graph).contains("search -->|\"output.status == 200\"| read"));
//!
//! let checked = check("papers.yaml".as_ref(), &text.replace("output.status", "output.stauts"), &[]);
//! assert_eq!(
//!     checked.found[0].to_string(),
//!     "papers.yaml:6:42: when: output has no \"stauts\"; did you mean status?"
//! );
//! ```

pub mod chat;
pub mod graph;
pub mod models;
pub mod run;
