//! What an agent's model is given of a long conversation: never more than the budget, never a call without its result.

use milepost::NewSession;
use milepost::context::tokens::Tokenizer;
use milepost::model::{Block, Content, Role};

use crate::support::{Overheard, Scene, completed, graph};

#[tokio::test]
async fn a_long_conversation_of_an_agent_stays_within_the_budget_and_valid() {
    let mut scene = Scene::new();
    scene.options.budget_tokens = 3000;
    let engine = scene.engine().await;
    let call = "  - calls: [{name: look, input: {}}, {name: look, input: {}}]\n";
    let script = format!("replies:\n{}  - {{text: done}}\n", call.repeat(8));
    let model = Overheard::in_order(&script);
    let text = "
nodes:
  a: {action: agent, with: {prompt: Look around., tools: [{name: look, action: shell, with: {command: 'seq 1 200'}}]}}
";
    let (id, end) =
        scene.runner(&engine).model(model.clone()).start(&graph(text), NewSession::default()).await.unwrap();
    completed(&end);
    assert_eq!(scene.said(id, "a").await.len(), 1 + 8 * 3 + 1, "everything stays in the session");
    let given = model.given();
    assert_eq!(given.len(), 9);
    for request in given.iter() {
        let tokens = Tokenizer::for_model("gpt-4o").count_messages(&request.messages);
        assert!(tokens <= 3000, "{tokens} tokens");
        assert!(request.messages[0].text().starts_with("Look around."));
        let mut open: Vec<String> = Vec::new();
        for message in &request.messages[1..] {
            let Content::Blocks(blocks) = &message.content else { continue };
            for block in blocks {
                match block {
                    Block::ToolCall { id, .. } => open.push(id.clone()),
                    Block::ToolResult { call_id, .. } => {
                        assert!(open.contains(call_id), "a result without its call");
                        open.retain(|id| id != call_id);
                    }
                    _ => {}
                }
            }
        }
        assert!(open.is_empty(), "calls without their results: {open:?}");
    }
    let last = given.last().unwrap();
    assert!(last.messages[0].text().contains("are left out"), "{:?}", last.messages[0]);
    assert_eq!(last.messages[1].role, Role::Assistant);
}
