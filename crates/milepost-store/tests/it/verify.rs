//! What `verify` says of stores that nobody damaged: nothing, whatever a message is made of.

use milepost_model::{Block, Message, Role};
use milepost_store::Append;
use serde_json::json;

use crate::support::{Scratch, create, user};

/// What a session shows of itself is the last text that was said. `verify` finds that text by a glance at each message:
/// one that it takes for silent and is not, or the other way round, would be reported as damage.
#[tokio::test]
async fn the_last_text_is_found_whatever_the_last_messages_are_made_of() {
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}});
    let linked = json!({"type": "image", "source": "https://example.com/a.png"});
    let described = json!({"type": "image", "source": {"url": "a.png"}, "alt": "a cat"});
    let without_source = json!({"type": "image", "url": "a.png"});
    let call = json!({"type": "tool_call", "id": "c1", "name": "search", "input": {"for": "cats"}});
    let result = json!({"type": "tool_result", "call_id": "c1", "content": [picture]});
    let text = json!({"type": "text", "text": "a text"});
    let cases = [
        vec![],
        vec![picture.clone()],
        vec![picture.clone(), linked.clone(), picture.clone()],
        vec![picture.clone(), json!("a bare text")],
        vec![linked, json!({"kind": "unknown"})],
        vec![described, text.clone()],
        vec![without_source],
        vec![picture.clone(), call],
        vec![result],
        vec![picture, json!({"type": "thinking", "text": "hm"}), json!({"type": "image", "source": {}})],
        vec![text],
    ];
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut previews = Vec::new();
    for blocks in &cases {
        let writer = create(&store).await;
        writer.append(Append::new().message(user("said before"))).await.unwrap();
        let blocks = blocks.iter().cloned().map(Block::from).collect();
        writer.append(Append::new().message(Message::blocks(Role::User, blocks))).await.unwrap();
        previews.push(store.session(writer.id()).await.unwrap().preview.unwrap_or_default());
        writer.release().await.unwrap();
    }
    let verified = store.verify().await.unwrap();
    assert_eq!(verified.problems, [], "sessions show {previews:?}");
    let silent = previews.iter().filter(|preview| *preview == "said before").count();
    assert_eq!(silent, 3, "an empty list, and two of pictures alone: {previews:?}");
}
