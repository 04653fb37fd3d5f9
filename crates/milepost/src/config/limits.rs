//! The limits of a configuration. Every error about one names it.

use milepost_document::{Limit, Limits};

/// The largest configuration file (1 MiB).
pub const MAX_CONFIG_BYTES: usize = 1 << 20;
/// How deep its values may lie (32).
pub const MAX_CONFIG_DEPTH: usize = 32;
/// How many values it may have, with the copies that aliases make (20,000).
pub const MAX_CONFIG_VALUES: usize = 20_000;
/// The longest text of one setting (256 KiB).
pub const MAX_TEXT_BYTES: usize = 256 << 10;
/// The longest list of one setting, and the most entries of `agents`, `templates` and the like (1,000).
pub const MAX_ITEMS: usize = 1000;
/// The longest name of an agent's kind, a template or a trigger (128 bytes).
pub const MAX_NAME_BYTES: usize = 128;
/// The longest redaction pattern (1 KiB).
pub const MAX_PATTERN_BYTES: usize = 1 << 10;

/// The limits of the file as a text.
pub(super) const DOCUMENT: Limits = Limits {
    bytes: Limit { name: "MAX_CONFIG_BYTES", at: MAX_CONFIG_BYTES },
    depth: Limit { name: "MAX_CONFIG_DEPTH", at: MAX_CONFIG_DEPTH },
    values: Limit { name: "MAX_CONFIG_VALUES", at: MAX_CONFIG_VALUES },
};
