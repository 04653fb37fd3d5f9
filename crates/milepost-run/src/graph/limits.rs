//! The limits of a graph. Every error about one names it.

use milepost_document::{Limit, Limits};

/// The largest graph file (1 MiB).
pub const MAX_GRAPH_BYTES: usize = 1 << 20;
/// The most nodes of a graph (10,000).
pub const MAX_NODES: usize = 10_000;
/// The most edges of a graph (50,000).
pub const MAX_EDGES: usize = 50_000;
/// The longest name of a node, an output or a memory key (64 bytes).
pub const MAX_NAME_BYTES: usize = 64;
/// The longest condition or other CEL expression (2 KiB).
pub const MAX_EXPRESSION_BYTES: usize = 2 << 10;
/// The most operators, points and brackets of an expression (200): each may lie inside of the one before.
pub const MAX_EXPRESSION_PARTS: usize = 200;
/// The longest template (256 KiB).
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;
/// The most words, operators and brackets between `{{` and `}}` (200), for the same reason.
pub const MAX_TEMPLATE_PARTS: usize = 200;
/// How much work a template may do, in steps of its engine (1,000,000).
pub const MAX_TEMPLATE_FUEL: u64 = 1_000_000;
/// The longest text that a template may give (8 MiB).
pub const MAX_RENDERED_BYTES: usize = 8 << 20;
/// The longest timeout, backoff or wait (366 days).
pub const MAX_DURATION_MS: u64 = 366 * 86_400_000;
/// The most rounds of a loop (1,000,000).
pub const MAX_LOOP_ROUNDS: u64 = 1_000_000;
/// The most attempts of a node (1,000).
pub const MAX_ATTEMPTS: u64 = 1000;
/// The most nodes that run at the same time (256; 4 when the file does not say).
pub const MAX_PARALLEL: u64 = 256;
/// The most tools of an agent (128).
pub const MAX_TOOLS: usize = 128;
/// The most checks of a node (64).
pub const MAX_CHECKS: usize = 64;
/// How deep graphs may lie inside of each other (8).
pub const MAX_GRAPHS_DEEP: usize = 8;
/// The most files that a graph may name, and those again (256); further ones are not looked at before they run.
pub const MAX_GRAPH_FILES: usize = 256;
/// How many mistakes are told of one file (200).
pub const MAX_FOUND: usize = 200;

/// The limits of the file as a text.
pub(crate) const DOCUMENT: Limits = Limits {
    bytes: Limit { name: "MAX_GRAPH_BYTES", at: MAX_GRAPH_BYTES },
    depth: Limit { name: "MAX_GRAPH_DEPTH", at: 32 },
    values: Limit { name: "MAX_GRAPH_VALUES", at: 500_000 },
};
