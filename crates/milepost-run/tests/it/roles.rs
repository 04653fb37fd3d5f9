//! What this test program is when a test starts it as a process of its own: an MCP server, or a run that kills itself.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};

/// The variable that says what to be.
pub const ROLE: &str = "MILEPOST_TEST_ROLE";

/// The arguments that make this program play its role.
pub const ARGUMENTS: [&str; 4] = ["--exact", "roles::as_a_process_of_its_own", "--nocapture", "--test-threads=1"];

#[test]
fn as_a_process_of_its_own() {
    let run = |future: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(future);
    };
    match std::env::var(ROLE).as_deref() {
        Ok("mcp") => run(Box::pin(serve_on_streams())),
        Ok("kill") => run(Box::pin(crate::kills::run_and_be_killed())),
        Ok("many") => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(crate::research::run_many());
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            let peak = peak.trim().trim_end_matches("kB").trim();
            let dir = std::env::var("MILEPOST_TEST_DIR").unwrap();
            std::fs::write(format!("{dir}/peak"), peak).unwrap();
        }
        Ok(other) => panic!("{other}"),
        Err(_) => {}
    }
}

/// A server with tools that are good and bad to have.
#[derive(Clone)]
pub struct Tools;

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |name: &'static str, schema: Value| {
            Tool::new(name, format!("the tool {name}"), Arc::new(schema.as_object().unwrap().clone()))
        };
        let echo = json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}});
        let any = json!({"type": "object"});
        let tools = vec![
            tool("echo", echo),
            tool("big", any.clone()),
            tool("fail", any.clone()),
            tool("hang", any.clone()),
            tool("a.dotted/name", any),
        ];
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(call.arguments.unwrap_or_default());
        let text = match &*call.name {
            "echo" => {
                let meta = serde_json::to_value(&context.meta).unwrap();
                json!({
                    "said": arguments["text"], "key": meta["milepost/idempotency-key"],
                    "environment": std::env::var("MILEPOST_IDEMPOTENCY_KEY").ok(), "home": std::env::var("CARGO_MANIFEST_DIR").ok(),
                })
                .to_string()
            }
            "big" => "x".repeat(usize::try_from(arguments["bytes"].as_u64().unwrap()).unwrap()),
            "fail" => {
                if let Some(log) = arguments["log"].as_str() {
                    let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
                    std::io::Write::write_all(&mut log, b"called\n").unwrap();
                }
                return Ok(CallToolResult::error(vec![ContentBlock::text("it does not work")]).into());
            }
            "a.dotted/name" => "a dot and a slash".to_owned(),
            "hang" => {
                // A child of its own, which has to end with it.
                let mut child = tokio::process::Command::new("sleep").arg("1000").spawn().unwrap();
                std::fs::write(
                    arguments["pids"].as_str().unwrap(),
                    format!("{} {}", std::process::id(), child.id().unwrap()),
                )
                .unwrap();
                child.wait().await.unwrap();
                String::new()
            }
            other => return Err(ErrorData::invalid_params(format!("there is no tool {other}"), None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

/// Standard output is for the harness; the client listens at descriptor 3.
async fn serve_on_streams() {
    let open = |path: &str, write: bool| std::fs::OpenOptions::new().read(!write).write(write).open(path).unwrap();
    let input = tokio::net::unix::pipe::Receiver::from_file(open("/dev/fd/0", false)).unwrap();
    let output = tokio::net::unix::pipe::Sender::from_file(open("/dev/fd/3", true)).unwrap();
    let service = Tools.serve((input, output)).await.unwrap();
    service.waiting().await.unwrap();
}
