//! The state of a session: everything that is not conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The sections Milepost knows. All are optional, all are open; other sections are kept as they are.
pub const SECTIONS: [&str; 10] =
    ["context", "memory", "tools", "execution", "agent", "environment", "files", "protocols", "summary", "metrics"];

/// Why a value cannot be a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The document is not an object.
    #[error("a state is a JSON object, not {0}: put the value under a section such as \"memory\"")]
    NotAnObject(&'static str),
}

/// A JSON object of sections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct State(Value);

impl Default for State {
    fn default() -> Self {
        Self(Value::Object(Map::new()))
    }
}

impl State {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// One section.
    pub fn section(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// One section, to change; made when it is not there.
    pub fn section_mut(&mut self, name: &str) -> &mut Value {
        if self.0.get(name).is_none() {
            self.0[name] = Value::Object(Map::new());
        }
        &mut self.0[name]
    }

    /// The value a JSON pointer names.
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        self.0.pointer(pointer)
    }

    /// The document: an object.
    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// The document.
    pub fn into_value(self) -> Value {
        self.0
    }
}

impl TryFrom<Value> for State {
    type Error = StateError;
    fn try_from(value: Value) -> Result<Self, StateError> {
        match value {
            Value::Object(_) => Ok(Self(value)),
            Value::Null => Err(StateError::NotAnObject("null")),
            Value::Bool(_) => Err(StateError::NotAnObject("a boolean")),
            Value::Number(_) => Err(StateError::NotAnObject("a number")),
            Value::String(_) => Err(StateError::NotAnObject("a string")),
            Value::Array(_) => Err(StateError::NotAnObject("a list")),
        }
    }
}

impl From<State> for Value {
    fn from(state: State) -> Value {
        state.into_value()
    }
}
