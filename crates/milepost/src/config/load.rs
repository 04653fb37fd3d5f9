//! Reading a configuration: the file, then the environment, then what was set explicitly.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use milepost_document::{Diagnostic, Format, Node, Origin, Severity};
use milepost_model::{PolicyPatch, Session, SessionPatch};
use serde_json::Value;

use super::limits::{DOCUMENT, MAX_CONFIG_BYTES};
use super::models;
use super::read::{Reader, Typed, read_text};
use super::schema::{self, Field, POLICY_ONLY, ROOT, Shape};
use super::settings::Settings;
use super::suggest;
use super::usable::{Surroundings, build, check_places, patch};
use crate::{Error, Result};

/// The variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "MILEPOST_CONFIG";
/// What commands and servers that a run starts are told: the key of the step, its session, its node, which attempt it is.
pub const STEP_VARIABLES: [&str; 4] =
    ["MILEPOST_IDEMPOTENCY_KEY", "MILEPOST_SESSION", "MILEPOST_NODE", "MILEPOST_ATTEMPT"];
/// How a configuration file is called.
pub const FILE_NAMES: [&str; 2] = ["milepost.yaml", "milepost.yml"];
/// So many directories are looked into, upwards.
const MAX_PARENTS: usize = 64;

/// How the environment is read.
type Lookup<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

/// Reads a configuration. Later layers win: defaults, the file, the environment, what was set explicitly.
///
/// ```
/// use milepost::config::Loader;
///
/// let lookup = |name: &str| match name {
///     "HOME" => Some("/home/ada".to_owned()),
///     "MILEPOST_POLICY_EVERY_MESSAGES" => Some("20".to_owned()),
///     _ => None,
/// };
/// let settings = Loader::new("/home/ada", lookup).without_file().set("workspace", "lab").load()?;
/// assert_eq!(settings.policy.every_messages, 20);
/// assert_eq!(settings.workspace.as_str(), "lab");
/// # Ok::<(), milepost::Error>(())
/// ```
pub struct Loader<'a> {
    directory: PathBuf,
    lookup: Lookup<'a>,
    file: Choice,
    sets: Vec<(String, String)>,
}

/// The file that is read.
struct Located {
    path: PathBuf,
    /// The user named it or keeps it for all work; it did not come with the directory.
    is_named: bool,
}

enum Choice {
    Find,
    This(PathBuf),
    None,
}

impl<'a> Loader<'a> {
    /// A loader for a working directory. The environment is read through `lookup` and in no other way.
    pub fn new(directory: impl Into<PathBuf>, lookup: impl Fn(&str) -> Option<String> + 'a) -> Self {
        Self { directory: directory.into(), lookup: Box::new(lookup), file: Choice::Find, sets: Vec::new() }
    }

    /// Reads this file instead of looking for one.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Choice::This(path.into());
        self
    }

    /// Reads no file.
    #[must_use]
    pub fn without_file(mut self) -> Self {
        self.file = Choice::None;
        self
    }

    /// Sets one setting, as a flag does: `set("policy.every_messages", "20")`.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.sets.push((key.into(), value.into()));
        self
    }

    /// The settings; the first problem when there is one.
    pub fn load(&self) -> Result<Settings> {
        let (mut settings, found) = self.read();
        if let Some(error) = first_error(&found) {
            return Err(error);
        }
        settings.warnings = found;
        Ok(settings)
    }

    /// All problems, errors and warnings. Also keys are looked for where they are to be.
    pub fn check(&self) -> Vec<Diagnostic> {
        let (settings, mut found) = self.read();
        // Also what the environment or a flag takes the place of: it counts again where those are not set.
        if let Ok(Some(Located { path, .. })) = self.locate() {
            let mut own = Vec::new();
            check_places(&read_file(&path, &mut Vec::new()), &self.around(), &mut own);
            own.retain(|problem| !found.contains(problem));
            found.extend(own);
        }
        if first_error(&found).is_none() {
            found.extend(settings.check_keys(Some(&*self.lookup)));
        }
        found
    }

    /// What [`Settings::check_variables`] says of these names, also where the settings cannot be used.
    pub fn check_variables<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Vec<Diagnostic> {
        self.read().0.check_variables(names)
    }

    fn read(&self) -> (Settings, Vec<Diagnostic>) {
        let mut found = Vec::new();
        let mut typed = match self.locate() {
            Ok(Some(Located { path, is_named })) => {
                let typed = read_file(&path, &mut found);
                if !is_named {
                    warn_of_foreign(&typed, &mut found);
                }
                typed
            }
            Ok(None) => Typed::default(),
            Err(problem) => {
                found.push(*problem);
                Typed::default()
            }
        };
        typed.overlay(self.variables(&mut found));
        typed.overlay(self.flags(&mut found));
        let around = self.around();
        let settings = build(typed, &around, &mut found);
        (settings, found)
    }

    fn around(&self) -> Surroundings<'_> {
        Surroundings { directory: &self.directory, lookup: &*self.lookup }
    }

    /// The file that is read: the one that was named; else the one in the variable `MILEPOST_CONFIG`; else
    /// `milepost.yaml` or `milepost.yml` in the working directory or above it, up to the root of the repository or the
    /// home directory; else `milepost/config.yaml` in the directory for configurations.
    pub fn find(&self) -> Result<Option<PathBuf>> {
        match self.locate() {
            Ok(located) => Ok(located.map(|located| located.path)),
            Err(problem) => {
                Err(first_error(&[*problem]).unwrap_or_else(|| Error::file("finding the configuration", "")))
            }
        }
    }

    fn locate(&self) -> Result<Option<Located>, Box<Diagnostic>> {
        let around = self.around();
        let named = |path: PathBuf| Ok(Some(Located { path, is_named: true }));
        match (&self.file, around.variable(CONFIG_VARIABLE)) {
            (Choice::None, _) => Ok(None),
            (Choice::This(path), _) => named(self.directory.join(path)),
            (Choice::Find, Some(path)) => named(self.directory.join(path)),
            (Choice::Find, None) => {
                if let Some(path) = self.find_upwards()? {
                    return Ok(Some(Located { path, is_named: false }));
                }
                let home = || around.directory_in("HOME").map(|home| home.join(".config"));
                let user = around.directory_in("XDG_CONFIG_HOME").or_else(home);
                let own = user.map(|user| user.join("milepost/config.yaml")).filter(|path| path.is_file());
                own.map_or(Ok(None), named)
            }
        }
    }

    /// Looks upwards only inside of a repository or the home directory: elsewhere, directories above may belong to others.
    fn find_upwards(&self) -> Result<Option<PathBuf>, Box<Diagnostic>> {
        let home = self.around().directory_in("HOME");
        let chain: Vec<&Path> = self.directory.ancestors().take(MAX_PARENTS).collect();
        let end = chain.iter().position(|dir| dir.join(".git").exists() || home.as_deref() == Some(*dir));
        for dir in &chain[..=end.unwrap_or(0)] {
            let both = FILE_NAMES.map(|name| dir.join(name));
            match both.each_ref().map(|path| path.is_file()) {
                [true, true] => {
                    let origin = Origin::File { path: both[1].as_path().into(), line: 0, column: 0 };
                    let why = format!("{} stands beside it", FILE_NAMES[0]);
                    return Err(Box::new(Diagnostic::error(&origin, "", why, "remove one of the two")));
                }
                [true, false] => return Ok(Some(both[0].clone())),
                [false, true] => return Ok(Some(both[1].clone())),
                [false, false] => {}
            }
        }
        Ok(None)
    }

    /// What the environment says. Empty variables count as not set.
    fn variables(&self, found: &mut Vec<Diagnostic>) -> Typed {
        let around = self.around();
        let mut all = Typed::default();
        for (path, field) in schema::settings() {
            if field.to.is_some() || matches!(field.shape, Shape::Named(_)) {
                continue;
            }
            let name = schema::variable(&path);
            if let Some(text) = around.variable(&name) {
                let path: Vec<String> = path.into_iter().map(str::to_owned).collect();
                all.overlay(read_text(&text, field, &path, &Origin::Variable(name), found));
            }
        }
        all
    }

    fn flags(&self, found: &mut Vec<Diagnostic>) -> Typed {
        let mut all = Typed::default();
        for (key, value) in &self.sets {
            let origin = Origin::Flag(key.clone());
            match resolve(key) {
                Ok((path, field)) => all.overlay(read_text(value, field, &path, &origin, found)),
                Err(instead) => {
                    found.push(Diagnostic::error(&origin, key.clone(), "there is no such setting", instead));
                }
            }
        }
        all
    }
}

/// The setting with this dotted name, or what to write instead. Entries with names of the user's own are set in the file.
fn resolve(key: &str) -> Result<(Vec<String>, &'static Field), String> {
    let mut path = Vec::new();
    let mut shape = &ROOT;
    let mut last = None;
    for part in key.split('.') {
        let Shape::Section(fields) = shape else {
            return Err("set it in the file".to_owned());
        };
        let Some(field) = schema::lookup(fields, &schema::snake(part)) else {
            return Err(suggest::for_key(part, &path, fields));
        };
        path.push(field.name.to_owned());
        (shape, last) = (&field.shape, Some(field));
    }
    match (last, shape) {
        (Some(_), Shape::Section(fields)) => {
            let names: Vec<_> = fields.iter().copied().flatten().map(|field| field.name).collect();
            Err(format!("name one of its settings: {}", names.join(", ")))
        }
        (Some(_), Shape::Named(_)) | (None, _) => Err("set it in the file".to_owned()),
        (Some(field), _) => Ok((path, field)),
    }
}

/// Whether a value is worth a look.
type Suspect = fn(&Value) -> bool;

/// A file that was found in a directory may have come with it, from someone else. What it says about where sessions go
/// and how they are protected is worth a warning.
fn warn_of_foreign(typed: &Typed, found: &mut Vec<Diagnostic>) {
    let is_remote: Suspect = |value| value.as_str().is_some_and(|url| url.contains("://") && !url.starts_with("file:"));
    let is_off: Suspect = |value| *value == Value::Bool(false);
    let suspects: [(&str, Suspect, &str); 6] = [
        ("store", is_remote, "it sends sessions to another machine"),
        ("blobs", is_remote, "it sends payloads to another machine"),
        ("encryption.enabled", is_off, "it turns encryption off"),
        ("signing.enabled", is_off, "it turns signatures off"),
        ("redaction.enabled", is_off, "it lets secrets be stored"),
        ("redaction.allow", |_| true, "it lets some secrets be stored"),
    ];
    let named = format!("if you trust it, name it in {CONFIG_VARIABLE} or with --config");
    models::refuse_foreign(typed, &named, found);
    for (key, is_suspect, why) in suspects {
        if let Some((_, origin)) = typed.get(key).filter(|(value, _)| is_suspect(value)) {
            let why = format!("{why}, and the file may have come with the directory");
            found.push(Diagnostic::warning(origin, key, why, named.clone()));
        }
    }
}

fn read_file(path: &Path, found: &mut Vec<Diagnostic>) -> Typed {
    let whole = Origin::File { path: Arc::from(path), line: 0, column: 0 };
    let text = match bounded(path) {
        Ok(text) => text,
        Err(error) => {
            let why = format!("it cannot be read: {error}");
            found.push(Diagnostic::error(&whole, "", why, "check that it is there and may be read, or name another"));
            return Typed::default();
        }
    };
    let Ok(text) = String::from_utf8(text) else {
        found.push(Diagnostic::error(&whole, "", "it is not UTF-8", "save it as UTF-8"));
        return Typed::default();
    };
    let Some(tree) = milepost_document::read(path, &text, Format::Yaml, &DOCUMENT, found) else {
        return Typed::default();
    };
    let mut reader = Reader::new(found);
    reader.read(&tree, &ROOT, &[], None);
    reader.typed
}

/// The file's bytes, one more than may be when there are more.
fn bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    file.take(MAX_CONFIG_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Everything that is wrong with a file, errors and warnings. The environment plays no part.
pub fn check(path: &Path) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let typed = read_file(path, &mut found);
    // The place of the store depends on the environment, which is not looked at here.
    let lookup = |name: &str| (name == "HOME").then(|| "/".to_owned());
    let settings = build(typed, &Surroundings { directory: Path::new(""), lookup: &lookup }, &mut found);
    if first_error(&found).is_none() {
        found.extend(settings.check_keys(None));
    }
    found
}

/// The change to a policy that a JSON value describes, as a session's or a run's own: every name of the settings of
/// `policy` is taken, in snake case and in camel case, and so is the form in which a change is stored.
pub fn policy_patch(value: &Value) -> Result<PolicyPatch> {
    read_patch(value, |found| Reader::new(found))
}

/// The change that a session keeps. A program that gave it as a [`PolicyPatch`] may have named triggers of its own.
pub(crate) fn stored_policy_patch(value: &Value) -> Result<PolicyPatch> {
    read_patch(value, |found| Reader::new(found).with_own_triggers())
}

fn read_patch(value: &Value, reader: impl FnOnce(&mut Vec<Diagnostic>) -> Reader<'_>) -> Result<PolicyPatch> {
    if !value.is_object() {
        let (place, why) = ("policy".to_owned(), "it is not an object".to_owned());
        return Err(Error::Config { place, why, instead: "write {\"every_messages\": 20}, for example".to_owned() });
    }
    let mut found = Vec::new();
    let mut reader = reader(&mut found);
    let origin = Origin::Flag("policy".to_owned());
    reader.read(&Node::from_json(value, &origin), &POLICY_ONLY, &[], None);
    let typed = reader.typed;
    match first_error(&found) {
        Some(error) => Err(error),
        None => Ok(patch(&typed.tree(&[]))),
    }
}

/// The key under which a session keeps its own change to the policy, among what else was set for it.
pub const SESSION_POLICY: &str = "policy";

/// A session's own change to the policy; none when it has none.
pub fn session_policy(session: &Session) -> Result<Option<PolicyPatch>> {
    session.extra.get(SESSION_POLICY).map(stored_policy_patch).transpose()
}

/// The change to a session that gives it its own policy; an empty one takes it away.
pub fn set_session_policy(patch: &PolicyPatch) -> SessionPatch {
    let value = match patch.is_empty() {
        true => Value::Null,
        false => serde_json::to_value(patch).unwrap_or(Value::Null),
    };
    SessionPatch::new().with(SESSION_POLICY, value)
}

impl Settings {
    /// Variables that begin with `MILEPOST_` and mean nothing, from the names of all that are set. One that is nearly a setting's
    /// is a mistake, as what it was to set is not; any other may be somebody's own.
    pub fn check_variables<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<Diagnostic> {
        let mut known: Vec<String> = schema::settings()
            .into_iter()
            .filter(|(_, field)| field.to.is_none() && !matches!(field.shape, Shape::Named(_)))
            .map(|(path, _)| schema::variable(&path))
            .collect();
        let usual = [CONFIG_VARIABLE, milepost_store::MASTER_KEY_VARIABLE, super::MARK_KEY_VARIABLE];
        known.extend(usual.map(str::to_owned));
        known.extend([self.encryption.variable.clone(), self.signing.variable.clone()]);
        known.extend(self.models.values().filter_map(|model| model.key_variable.clone()));
        let is_known = |name: &&str| known.iter().any(|one| one == name) || STEP_VARIABLES.contains(name);
        let unknown = names.into_iter().filter(|name| name.starts_with("MILEPOST_") && !is_known(name));
        let told = unknown.map(|name| {
            let near = suggest::nearest(name, known.iter().map(String::as_str));
            let is_slip = near.is_some_and(|near| near.len().abs_diff(name.len()) <= MAX_SLIP && is_near(name, near));
            let severity = if is_slip { Severity::Error } else { Severity::Warning };
            let instead = near.map_or("remove it".to_owned(), |near| format!("did you mean {near}?"));
            let origin = Origin::Variable(name.to_owned());
            Diagnostic { severity, ..Diagnostic::error(&origin, "", "it means nothing to Milepost", instead) }
        });
        told.collect()
    }

    /// Refuses variables that were meant to set something and do not.
    pub fn refuse_variables<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        first_error(&self.check_variables(names)).map_or(Ok(()), Err)
    }
}

/// A slip of the pen makes a name longer or shorter by so much at most.
const MAX_SLIP: usize = 2;

/// Whether two variables are nearly the same without what all of them begin with.
fn is_near(name: &str, known: &str) -> bool {
    let [name, known] = [name, known].map(|name| name.strip_prefix("MILEPOST_").unwrap_or(name));
    suggest::nearest(name, [known]).is_some()
}

/// The first error as an error of the engine, saying how many more there are; none when there is no error.
fn first_error(found: &[Diagnostic]) -> Option<Error> {
    let mut errors = found.iter().filter(|one| one.severity == Severity::Error);
    let first = errors.next()?;
    let instead = match errors.count() {
        0 => first.instead.clone(),
        more => format!("{} (and {more} more: `milepost config check` lists them all)", first.instead),
    };
    Some(Error::Config { place: first.origin.to_string(), why: first.told(), instead })
}
