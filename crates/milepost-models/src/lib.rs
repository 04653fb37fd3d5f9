//! Models, asked in one way: Anthropic's Messages, OpenAI-compatible chat completions, and a scripted one that needs no
//! network.
//!
//! [`Model::ask`] sends a conversation (a valid view of it, whatever a crash left behind) and gives an [`Outcome`]: the
//! whole answer, the beginning of one with the reason why no more came, or a limit with the moment at which it ends. A
//! limit is not an error. Pieces are heard as they arrive. Answers and events are limited in size, and every wait in
//! time. Keys are read from the environment, held in memory, and never printed or stored.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use milepost_model::{Message, Role};
//! use milepost_models::{Cancel, Model, Outcome, Piece, Request, Scripted, Timer};
//!
//! let script = "replies:\n  - pieces: ['Three ', 'papers.']\n";
//! let model = Scripted::parse("demo.yaml".as_ref(), script, Timer::none())?;
//! let request = Request::new(vec![Message::new(Role::User, "Find papers")]);
//! let mut heard = String::new();
//! let mut listen = |piece: Piece<'_>| if let Piece::Text(text) = piece { heard.push_str(text) };
//! let Outcome::Whole(answer) = model.ask(&request, &Cancel::new(), &mut listen).await? else { panic!() };
//! assert_eq!(answer.message.text(), "Three papers.");
//! assert_eq!(heard, "Three papers.");
//! # Ok(())
//! # }
//! ```

mod answer;
mod anthropic;
mod cancel;
mod config;
mod error;
mod http;
mod key;
pub mod limits;
mod openai;
mod prices;
mod rate;
mod refusal;
mod request;
mod scripted;
pub mod sse;
mod timer;

use async_trait::async_trait;

pub use answer::{Answer, Heard, Limited, Outcome, Piece, Stop, Told, Usage};
pub use anthropic::Anthropic;
pub use cancel::Cancel;
pub use config::{ModelConfig, Provider};
pub use error::Error;
pub use http::{http_client, retry_after};
pub use key::Key;
pub use limits::Timeouts;
pub use openai::OpenAi;
pub use prices::{Cost, Prices};
pub use request::{Request, Tool};
pub use scripted::Scripted;
pub use timer::Timer;

/// A model that can be asked.
#[async_trait]
pub trait Model: Send + Sync + std::fmt::Debug {
    /// Its name.
    fn name(&self) -> &str;

    /// Asks for the next message. Pieces are heard as they arrive. When `cancel` is cancelled, what had arrived is kept.
    async fn ask(&self, request: &Request, cancel: &Cancel, heard: Heard<'_>) -> Result<Outcome, Error>;
}
