//! What a session knows of the directory that it works in.

use std::path::{Path, PathBuf};

use milepost_model::delta::StatePath;
use milepost_store::SessionQuery;
use serde_json::Value;

use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::project::{Context, ContextFor, ContextLimits, Identified, ProjectId, Projects, collect, is_stale};
use crate::session::Session;

/// Records of what was collected for a session, to see when it is old.
const COLLECTED: &str = "context";

impl Milepost {
    /// The project of a directory.
    pub async fn here(&self, dir: &Path) -> Result<Identified> {
        self.projects().await?.identify(dir).await
    }

    /// The id of the project that is meant: by its id, or by the name that lists show. What is neither is taken as it is,
    /// as programs have ids of their own; a name of several is ambiguous.
    pub async fn project_meant(&self, given: &str) -> Result<String> {
        Ok(self.project_if_known(given).await?.unwrap_or_else(|| given.to_owned()))
    }

    /// The same, where the project has to be known: by a session, or by a directory.
    pub async fn project_known(&self, given: &str) -> Result<String> {
        let known = self.project_if_known(given).await?;
        known.ok_or_else(|| milepost_store::Error::NotFound { what: "project", id: given.to_owned() }.into())
    }

    async fn project_if_known(&self, given: &str) -> Result<Option<String>> {
        let of_it = SessionQuery { project: Some(given.to_owned()), limit: Some(1), ..SessionQuery::default() };
        if !self.sessions(&of_it).await?.sessions.is_empty() {
            return Ok(Some(given.to_owned()));
        }
        let Some(projects) = Projects::open_if_any(self.store()).await? else { return Ok(None) };
        let all = projects.all().await?;
        let named: Vec<_> = all.iter().filter(|project| project.name == given).collect();
        match named.as_slice() {
            [] => Ok(all.iter().any(|project| project.id.as_str() == given).then(|| given.to_owned())),
            [only] => Ok(Some(only.id.to_string())),
            many => Err(Error::Ambiguous {
                given: given.to_owned(),
                candidates: many.iter().map(|project| project.id.to_string()).collect(),
            }),
        }
    }
}

impl Session {
    /// Puts what a directory tells into the state's `context`: structure, documents, commits, tasks. When it was
    /// collected before and nothing has changed since, nothing is done. Returns whether it was collected.
    pub async fn collect_context(&self, dir: &Path) -> Result<bool> {
        let store = self.engine().store();
        let key = self.id().to_string();
        let known = store.record(COLLECTED, &key).await?;
        let before: Option<Context> = known.as_ref().and_then(|record| serde_json::from_slice(&record.value).ok());
        if let Some(before) = &before
            && !is_stale(before, dir).await?
        {
            // It may have been moved.
            let (path, shown) = working_directory(dir);
            if self.state().await?.pointer("/context/workingDirectory") != Some(&shown) {
                self.set(&[(path, shown)]).await?;
            }
            return Ok(false);
        }
        let limits = before.map_or_else(ContextLimits::default, |before| before.limits);
        let context = collect(dir, &limits, self.engine().source().now()).await?;
        self.set(&self.context_values(&context, dir).await).await?;
        let mut value =
            serde_json::to_value(&context).map_err(|error| Error::file("keeping what was collected", error))?;
        self.engine().redaction().value(&mut value);
        let bytes = serde_json::to_vec(&value).map_err(|error| Error::file("keeping what was collected", error))?;
        store.put_record(COLLECTED, &key, known.map(|record| record.version), None, &bytes).await?;
        Ok(true)
    }

    /// Collects anew what was collected before, when the directory has changed, also where it was moved to. That it cannot
    /// be done is no reason not to go on, and is told.
    pub(crate) async fn refresh_context(&self) -> Option<String> {
        let Ok(Some(_)) = self.engine().store().record(COLLECTED, &self.id().to_string()).await else { return None };
        let state = self.state().await.ok()?;
        let known = PathBuf::from(state.pointer("/context/workingDirectory").and_then(Value::as_str)?);
        if known.as_os_str().to_string_lossy().contains("[redacted:") {
            return Some(
                "the path of its directory has a secret in it and is not kept: what the session knows of it is as it was \
                 before; give the directory another name, and begin a session there"
                    .to_owned(),
            );
        }
        let directory = match known.is_dir() {
            true => Some(known.clone()),
            false => self.moved_to(&known).await.ok().flatten(),
        };
        let Some(directory) = directory else {
            return Some(format!(
                "the directory {} is gone, and its project was seen nowhere else: what the session knows of it is as it was \
                 before; begin a session where it is now, and this one finds it",
                known.display()
            ));
        };
        let failed = self.collect_context(&directory).await.err()?;
        Some(format!("what the session knows of {} is as it was before: {failed}", directory.display()))
    }

    /// Where a directory is now, as far as its project knows.
    async fn moved_to(&self, known: &Path) -> Result<Option<PathBuf>> {
        let Some(id) = self.info().await.project else { return Ok(None) };
        let Some(projects) = Projects::open_if_any(self.engine().store()).await? else { return Ok(None) };
        let project = projects.project(&ProjectId::new(id)?).await?;
        // A directory inside of the project is looked for at the same place in it.
        let inside = project
            .paths
            .iter()
            .filter_map(|path| known.strip_prefix(path).ok())
            .min_by_key(|rest| rest.as_os_str().len());
        let inside = inside.map(Path::to_owned).unwrap_or_default();
        let now = project.paths.iter().rev().map(|path| Path::new(path).join(&inside)).find(|path| path.is_dir());
        Ok(now)
    }

    /// The fields of `context_{sessionId}.json`, each in its place; what else the context holds stays.
    async fn context_values(&self, context: &Context, dir: &Path) -> Vec<(StatePath, Value)> {
        let info = self.info().await;
        let (session, tokenizer) = (self.id().to_string(), self.engine().tokenizer());
        let about = ContextFor {
            session: &session,
            agent: info.agent.as_deref().unwrap_or_default(),
            feature: info.feature.as_deref().unwrap_or_default(),
            // A feature is called what the session says: there is no other name for it here.
            feature_name: info.feature.as_deref(),
            task: info.task.as_deref(),
        };
        let whole = context.to_json(&about, &|text| tokenizer.count_text(text) as u64);
        let fields = whole.as_object().cloned().unwrap_or_default();
        let place = |(key, value): (String, Value)| (StatePath::root().key("context").key(key), value);
        // What nobody said does not stand over what somebody set.
        let is_said = |(key, value): &(String, Value)| key != "sessionId" && value.as_str() != Some("");
        fields.into_iter().filter(is_said).map(place).chain([working_directory(dir)]).collect()
    }
}

fn working_directory(dir: &Path) -> (StatePath, Value) {
    (StatePath::root().key("context").key("workingDirectory"), Value::String(dir.display().to_string()))
}
