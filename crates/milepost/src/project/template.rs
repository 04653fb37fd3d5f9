//! Templates: texts with `{{name}}` where something is filled in. What is filled in is not looked at again, so that a
//! value can never bring in another.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use super::artifact::{MAX_ARTIFACT_BYTES, NewArtifact, Owner, Stored};
use super::keep::{Projects, apart};
use super::registry::ProjectId;
use crate::config::Template;
use crate::{Error, Result};

/// The longest name of a placeholder.
const MAX_PLACEHOLDER_BYTES: usize = 64;

enum Piece<'a> {
    Text(&'a str),
    Placeholder { name: &'a str, line: usize },
}

/// The placeholders of a template, by name.
pub fn placeholders(template: &str) -> Result<BTreeSet<String>> {
    let pieces = pieces("the template", template)?;
    let names = pieces.iter().filter_map(|piece| match piece {
        Piece::Placeholder { name, .. } => Some((*name).to_owned()),
        Piece::Text(_) => None,
    });
    Ok(names.collect())
}

/// Fills a template in. `{{name}}` becomes the value of `name`; `\{{` stands for two braces. A placeholder without a
/// value is an error, and so is a result larger than an artifact may be.
pub fn fill(name: &str, template: &str, values: &BTreeMap<String, String>) -> Result<String> {
    let mut out = String::with_capacity(template.len());
    for piece in pieces(name, template)? {
        out.push_str(match piece {
            Piece::Text(text) => text,
            Piece::Placeholder { name: wanted, line } => values.get(wanted).ok_or_else(|| {
                let given: Vec<_> = values.keys().map(String::as_str).take(20).collect();
                let why = format!("line {line} has the placeholder {{{{{wanted}}}}}, and there is no value for it");
                let instead = format!("give a value for {wanted}; given are: {}", given.join(", "));
                Error::refused(format!("filling in the template {name:?}"), why, instead)
            })?,
        });
        if out.len() > MAX_ARTIFACT_BYTES {
            let why = format!("the result passes the limit MAX_ARTIFACT_BYTES, {MAX_ARTIFACT_BYTES}");
            return Err(Error::refused(format!("filling in the template {name:?}"), why, "use shorter values"));
        }
    }
    Ok(out)
}

fn pieces<'a>(template_name: &str, template: &'a str) -> Result<Vec<Piece<'a>>> {
    let mut pieces = Vec::new();
    let (mut rest, mut line) = (template, 1);
    while let Some(at) = rest.find("{{") {
        line += rest[..at].matches('\n').count();
        if rest[..at].ends_with('\\') {
            pieces.extend([Piece::Text(&rest[..at - 1]), Piece::Text("{{")]);
            rest = &rest[at + 2..];
            continue;
        }
        pieces.push(Piece::Text(&rest[..at]));
        let inner = &rest[at + 2..];
        let name = inner.split_once("}}").map(|(name, _)| name.trim());
        let is_name = |name: &str| {
            (1..=MAX_PLACEHOLDER_BYTES).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        };
        let Some(name) = name.filter(|name| is_name(name)) else {
            let why = format!("line {line} has {{{{ without a name of letters, digits, _ - . and }}}} after it");
            let instead = "close the placeholder, or write \\{{ for the two braces themselves";
            return Err(Error::refused(format!("reading the template {template_name:?}"), why, instead));
        };
        pieces.push(Piece::Placeholder { name, line });
        rest = inner.split_once("}}").map_or("", |(_, rest)| rest);
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

impl Template {
    /// The template's text. A file must lie below the configuration's directory, links followed.
    pub fn text(&self) -> Result<String> {
        let (below, path) = match self {
            Template::Text(text) => return Ok(text.clone()),
            Template::File { below, path } => (below, path),
        };
        let what = format!("reading the template {}", below.join(path).display());
        let fail = |error: std::io::Error| Error::file(&what, error);
        let root = below.canonicalize().map_err(fail)?;
        let whole = root.join(path).canonicalize().map_err(fail)?;
        if !whole.starts_with(&root) || !whole.is_file() {
            return Err(Error::refused(
                what,
                "it leads out of the configuration's directory, or is no file",
                "copy it there",
            ));
        }
        let mut text = String::new();
        let file = std::fs::File::open(&whole).map_err(fail)?;
        file.take(MAX_ARTIFACT_BYTES as u64 + 1).read_to_string(&mut text).map_err(fail)?;
        if text.len() > MAX_ARTIFACT_BYTES {
            let why = format!("it passes the limit MAX_ARTIFACT_BYTES, {MAX_ARTIFACT_BYTES}");
            return Err(Error::refused(what, why, "shorten it"));
        }
        Ok(text)
    }
}

impl Projects {
    /// Makes an artifact of the template with this name: one that its owner keeps, or the project that a session belongs
    /// to, or the configuration.
    pub async fn make(
        &self,
        owner: &Owner,
        name: &str,
        template: &str,
        values: &BTreeMap<String, String>,
    ) -> Result<Stored> {
        let mut owners = vec![owner.clone()];
        if let Owner::Session(id) = owner
            && let Some(project) = self.store.session(*id).await?.project
        {
            owners.push(Owner::Project(ProjectId::new(project)?));
        }
        for keeper in &owners {
            match self.make_artifact(owner, name, (keeper, template), values).await {
                Err(Error::Store(milepost_store::Error::NotFound { what: "artifact", .. })) => {}
                made => return made,
            }
        }
        let Some(configured) = self.engine().and_then(|engine| engine.template(template)).cloned() else {
            let id = format!("{template:?} of {owner}, nor in the configuration");
            return Err(milepost_store::Error::NotFound { what: "template", id }.into());
        };
        let text = apart("reading a template", move || configured.text()).await??;
        let made = fill(template, &text, values)?;
        let new = NewArtifact { template: Some(template.to_owned()), ..NewArtifact::default() };
        self.put_artifact(owner, name, made.as_bytes(), new).await
    }
}
