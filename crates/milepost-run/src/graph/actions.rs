//! What a node can do: every action with its parameters. The check, the published schema and the executor read this
//! one table.

use serde::{Deserialize, Serialize};

/// What may stand at a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A text in which `{{ … }}` is filled in.
    Template,
    /// A line for the shell, in which `{{ … }}` is filled in and quoted.
    Command,
    /// A list of such texts.
    Templates,
    /// Such texts with names.
    TemplateMap,
    /// Any value; texts in it are templates, and `{cel: …}` is what the expression gives.
    Any,
    /// A section of such values.
    AnyMap,
    /// A plain text.
    Text,
    /// A list of plain texts.
    Texts,
    /// A length of time.
    Duration,
    /// A whole number in a range.
    Number {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// A list of whole numbers in a range.
    Numbers {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// True or false.
    Flag,
    /// One of some words.
    Choice(&'static [&'static str]),
    /// A graph: nodes and edges. Its templates see what its own nodes see.
    Graph,
    /// The tools of an agent: names, or sections. Their templates also see `input`, what the model gave.
    Tools,
    /// Commands with names: a line for the shell each, or a section of `shell`'s parameters.
    Commands,
}

/// A parameter of an action.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What may stand there.
    pub shape: Shape,
    /// Whether it has to be there.
    pub required: bool,
    /// What it is for.
    pub about: &'static str,
}

/// What it means to run an action a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// Nothing: it changes nothing outside of the session.
    Harmless,
    /// The same again, under the same key or by its nature.
    Idempotent,
    /// Another effect: nobody repeats it without asking.
    Effect,
}

impl Repeat {
    /// As it stands in the log.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Repeat::Harmless => "harmless",
            Repeat::Idempotent => "idempotent",
            Repeat::Effect => "effect",
        }
    }
}

/// What is known of a field that an action gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// Anything.
    Any,
    /// A text.
    Text,
    /// A number.
    Number,
    /// True or false.
    Flag,
    /// A map.
    Map,
}

/// Something that a node can do.
#[derive(Debug, Clone, Copy)]
pub struct Action {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The fields of what it gives.
    pub gives: &'static [(&'static str, Given)],
    /// What a second time means, unless the node says `idempotent`.
    pub repeat: Repeat,
    /// Its parameters; none stands for keys of the user's own.
    pub parameters: Option<&'static [Parameter]>,
    /// Parameters of which exactly one has to be there.
    pub one_of: &'static [&'static str],
}

const fn must(name: &'static str, shape: Shape, about: &'static str) -> Parameter {
    Parameter { name, shape, required: true, about }
}

const fn may(name: &'static str, shape: Shape, about: &'static str) -> Parameter {
    Parameter { name, shape, required: false, about }
}

/// The ways to read a text that came back.
pub const PARSE: &[&str] = &["text", "json", "lines"];
/// The methods of HTTP.
pub const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

const OUTPUT_BYTES: Shape = Shape::Number { min: 1, max: 64 << 20 };

/// The tools that an agent can be given by their names alone.
pub const PLAIN_TOOLS: &[&str] = &["shell", "http", "ask"];
/// The actions that a tool may be.
pub const TOOL_ACTIONS: &[&str] = &["shell", "http", "mcp", "ask", "approve"];
/// The keys of a tool.
pub const TOOL: &[&str] =
    &["name", "description", "action", "with", "input", "idempotent", "timeout", "mcp", "only", "prefix"];

const ENV_HEADERS: &str = "further headers in which ${NAME} is a variable of the environment when it is sent: the place for secrets, which are not kept";
const MAX_TURNS: Shape = Shape::Number { min: 1, max: 1000 };
const MODEL: Parameter = may("model", Shape::Text, "which model, as PROVIDER/MODEL; the run's by default");
const SYSTEM: Parameter = may("system", Shape::Template, "instructions");
const MAX_TOKENS: Parameter =
    may("max_tokens", Shape::Number { min: 1, max: 1_000_000 }, "the longest answer; 8,192 tokens by default");
const TOOLS: Parameter = may("tools", Shape::Tools, "what the model may do: shell, http, ask, or tools of your own");

/// Every action.
pub const ACTIONS: &[Action] = &[
    Action {
        name: "shell",
        about: "runs a command in a process group of its own",
        gives: &[
            ("code", Given::Number),
            ("stdout", Given::Text),
            ("stderr", Given::Text),
            ("truncated", Given::Flag),
            ("value", Given::Any),
        ],
        repeat: Repeat::Effect,
        one_of: &["command", "argv"],
        parameters: Some(&[
            may("command", Shape::Command, "a line for the shell; what is filled in is quoted"),
            may("argv", Shape::Templates, "a program and its arguments, without a shell"),
            may("cwd", Shape::Template, "the directory to run it in; the session's by default"),
            may(
                "env",
                Shape::Texts,
                "the variables of the environment that it may see, beside PATH, HOME, LANG and TMPDIR",
            ),
            may("set", Shape::TemplateMap, "further variables"),
            may("stdin", Shape::Template, "what it reads"),
            may("ok", Shape::Numbers { min: 0, max: 255 }, "the exit codes that are a success; 0 by default"),
            may("parse", Shape::Choice(PARSE), "how stdout is read into value"),
            may("max_output_bytes", OUTPUT_BYTES, "how much of stdout and of stderr is kept; 1 MiB by default"),
        ]),
    },
    Action {
        name: "http",
        about: "sends a request; the header Idempotency-Key carries the step's key",
        gives: &[
            ("status", Given::Number),
            ("headers", Given::Map),
            ("body", Given::Text),
            ("truncated", Given::Flag),
            ("json", Given::Any),
        ],
        repeat: Repeat::Effect,
        one_of: &[],
        parameters: Some(&[
            must("url", Shape::Template, "where to"),
            may("method", Shape::Choice(METHODS), "GET by default, POST with a body"),
            may("headers", Shape::TemplateMap, "further headers"),
            may("env_headers", Shape::TemplateMap, ENV_HEADERS),
            may("body", Shape::Template, "what is sent"),
            may("json", Shape::Any, "what is sent, as JSON"),
            may("ok", Shape::Numbers { min: 100, max: 599 }, "the statuses that are a success; 200 to 299 by default"),
            may("max_response_bytes", OUTPUT_BYTES, "how much of the response is kept; 1 MiB by default"),
        ]),
    },
    Action {
        name: "set",
        about: "puts values into the shared memory",
        gives: &[],
        repeat: Repeat::Harmless,
        one_of: &[],
        parameters: None,
    },
    Action {
        name: "wait",
        about: "waits, durably",
        gives: &[("until", Given::Text)],
        repeat: Repeat::Harmless,
        one_of: &["for", "until"],
        parameters: Some(&[
            may("for", Shape::Duration, "how long"),
            may("until", Shape::Template, "until when: a date and a time"),
        ]),
    },
    Action {
        name: "ask",
        about: "puts a question to a person and waits for the answer",
        gives: &[("answer", Given::Any), ("by", Given::Text)],
        repeat: Repeat::Harmless,
        one_of: &[],
        parameters: Some(&[
            must("question", Shape::Template, "the question"),
            may("choices", Shape::Templates, "the answers that are taken; any by default"),
            may("timeout", Shape::Duration, "how long to wait; for ever by default"),
            may("default", Shape::Template, "the answer when nobody gave one in time"),
        ]),
    },
    Action {
        name: "approve",
        about: "waits until a person says yes; no ends in the node's failure",
        gives: &[("approved", Given::Flag), ("by", Given::Text)],
        repeat: Repeat::Harmless,
        one_of: &[],
        parameters: Some(&[
            must("question", Shape::Template, "what is to be approved"),
            may("timeout", Shape::Duration, "how long to wait; for ever by default"),
            may("default", Shape::Choice(&["yes", "no"]), "the answer when nobody gave one in time"),
        ]),
    },
    Action {
        name: "model",
        about: "asks a model once",
        gives: &[
            ("text", Given::Text),
            ("stop", Given::Text),
            ("model", Given::Text),
            ("usage", Given::Map),
            ("json", Given::Any),
        ],
        repeat: Repeat::Idempotent,
        one_of: &[],
        parameters: Some(&[
            must("prompt", Shape::Template, "what is asked"),
            MODEL,
            SYSTEM,
            MAX_TOKENS,
            may("json", Shape::Flag, "whether the answer has to be JSON"),
        ]),
    },
    Action {
        name: "agent",
        about: "asks a model, runs the tools that it calls, and goes on until it is done; every turn and call is a step",
        gives: &[
            ("text", Given::Text),
            ("turns", Given::Number),
            ("stop", Given::Text),
            ("model", Given::Text),
            ("usage", Given::Map),
            ("json", Given::Any),
        ],
        repeat: Repeat::Idempotent,
        one_of: &[],
        parameters: Some(&[
            must("prompt", Shape::Template, "what it is to do"),
            MODEL,
            SYSTEM,
            MAX_TOKENS,
            TOOLS,
            may("max_turns", MAX_TURNS, "how often the model is asked before the run pauses; 25 by default"),
            may("max_result_bytes", OUTPUT_BYTES, "how much of what a tool gives the model sees; 64 KiB by default"),
            may("checkpoint_every", MAX_TURNS, "after so many turns there is a checkpoint; 1 by default"),
            may("json", Shape::Flag, "whether the last answer has to be JSON"),
        ]),
    },
    Action {
        name: "checks",
        about: "runs checks and lets an agent mend what fails, until all pass",
        gives: &[("passed", Given::Flag), ("rounds", Given::Number), ("checks", Given::Any), ("usage", Given::Map)],
        repeat: Repeat::Idempotent,
        one_of: &[],
        parameters: Some(&[
            must("checks", Shape::Commands, "the checks, by name: build, lint, test"),
            must("prompt", Shape::Template, "what the agent is to do about failures; it is told which there are"),
            MODEL,
            SYSTEM,
            MAX_TOKENS,
            TOOLS,
            may(
                "rounds",
                Shape::Number { min: 1, max: 1000 },
                "how often the checks run before the run pauses; 5 by default",
            ),
            may("max_turns", MAX_TURNS, "how often the model is asked in a round; 25 by default"),
            may("max_result_bytes", OUTPUT_BYTES, "how much of what a tool gives the model sees; 64 KiB by default"),
            may("timeout", Shape::Duration, "how long a check may take; 10 minutes by default"),
        ]),
    },
    Action {
        name: "mcp",
        about: "calls a tool of an MCP server",
        gives: &[
            ("text", Given::Text),
            ("content", Given::Any),
            ("structured", Given::Any),
            ("truncated", Given::Flag),
        ],
        repeat: Repeat::Effect,
        one_of: &["argv", "url"],
        parameters: Some(&[
            may("argv", Shape::Templates, "a server that is a program: the program and its arguments"),
            may("url", Shape::Template, "a server that is reached over HTTP (streamable HTTP)"),
            must("tool", Shape::Template, "the tool"),
            may("arguments", Shape::AnyMap, "its arguments"),
            may("headers", Shape::TemplateMap, "further headers, with url"),
            may("env_headers", Shape::TemplateMap, ENV_HEADERS),
            may("cwd", Shape::Template, "the directory to run argv in; the session's by default"),
            may(
                "env",
                Shape::Texts,
                "the variables of the environment that argv may see, beside PATH, HOME, LANG and TMPDIR",
            ),
            may("set", Shape::TemplateMap, "further variables, with argv"),
            may("max_output_bytes", OUTPUT_BYTES, "how much of the result is kept; 1 MiB by default"),
        ]),
    },
    Action {
        name: "graph",
        about: "runs a graph; its steps are in the ledger as NODE/STEP, and what it gives are that graph's outputs",
        gives: &[],
        repeat: Repeat::Idempotent,
        one_of: &["file", "graph"],
        parameters: Some(&[
            may("file", Shape::Text, "the graph's file, beside this one"),
            may("graph", Shape::Graph, "the graph itself"),
            may("memory", Shape::AnyMap, "values of its shared memory when it begins"),
        ]),
    },
];

/// The action of this name.
pub fn find(name: &str) -> Option<&'static Action> {
    ACTIONS.iter().find(|action| action.name == name)
}
