//! Projects, and what they and their sessions have made.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, Subcommand)]
pub enum Projects {
    /// List projects: repositories, directories, and what else sessions are about
    #[command(visible_alias = "ls")]
    List,
    /// Show a project: its directories, its sessions, what was made
    Show {
        /// The project: its id or its name; that of the working directory when none
        project: Option<String>,
    },
    /// Say that a directory belongs to a project: one that was copied or brought from another disk, or a repository begun anew
    Link {
        /// The project: its id or its name
        project: String,
        /// The directory; the working directory when none
        directory: Option<PathBuf>,
    },
}

/// Whose artifacts.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct Whose {
    /// Of this session; else of the project
    #[arg(long, value_name = "SESSION", conflicts_with = "project")]
    pub of: Option<String>,
    /// Of this project: its id or its name; that of the working directory when none
    #[arg(long)]
    pub project: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Artifacts {
    /// List artifacts, and the templates from which new ones are made
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        whose: Whose,
    },
    /// Write the content of an artifact
    Show {
        /// Its name: a relative path, such as docs/foundation.md
        name: String,
        #[command(flatten)]
        whose: Whose,
        /// This version instead of the newest
        #[arg(long, value_name = "NUMBER")]
        version: Option<u64>,
    },
    /// Keep an artifact; what was there stays as an older version
    Put {
        /// Its name: a relative path, such as docs/foundation.md
        name: String,
        /// The file with its content; the input when it is -. Left out, the input too, or the file of that name where nothing
        /// comes in
        file: Option<PathBuf>,
        #[command(flatten)]
        whose: Whose,
        /// It is a template: {{name}} in it is filled in by `artifacts make`
        #[arg(long)]
        template: bool,
    },
    /// Make an artifact of a template: one that was put, or one of the configuration
    Make {
        /// The name of the new one
        name: String,
        /// The template
        template: String,
        #[command(flatten)]
        whose: Whose,
        /// What is filled in: title="Three papers"; may be given several times
        #[arg(long = "set", value_name = "NAME=TEXT")]
        set: Vec<String>,
    },
    /// Remove an artifact with all its versions
    Delete {
        /// Its name
        name: String,
        #[command(flatten)]
        whose: Whose,
        /// Only say what would go
        #[arg(long)]
        dry_run: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}
