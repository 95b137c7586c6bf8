//! Runs the shell blocks of the tour in docs/mcp.md. A line of a block that begins with `# ` is a
//! line that the block must print.

use std::path::Path;

use crate::support::{Dev, Origin, free_address};

/// Printed before each block's output.
const MARK: &str = "-- block";

#[test]
fn every_block_of_the_tour_prints_what_the_page_says() {
    let page = include_str!("../../docs/mcp.md");
    let (_, tour) = page.split_once("## A tour").unwrap();
    let (tour, _) = tour.split_once("\n## ").unwrap();
    let blocks = tour.split("```sh\n").skip(1);
    let blocks: Vec<_> = blocks.filter_map(|rest| rest.split_once("```")).collect();
    assert!(blocks.len() > 5, "{blocks:?}");

    let origin = Origin::start();
    let gateway = free_address();
    let dev = Dev::with_gateway(&origin, gateway);
    let binary = Path::new(env!("CARGO_BIN_EXE_unified-proxy"));
    // The page assumes the gateway's default port, 8090. The gateway of this test has another port,
    // so the script sets its URL and replaces the port in the blocks.
    let mut script = format!(
        "exec 2>&1\nPATH={}:$PATH\nexport UNIFIED_PROXY_MCP_URL=http://{gateway}/mcp\n",
        binary.parent().unwrap().display()
    );
    let health = format!("http://{gateway}/health");
    for (block, _) in &blocks {
        let block = block.replace("http://127.0.0.1:8090/health", &health);
        script += &format!("echo '{MARK}'\n{block}\n");
    }
    let output = dev.shell(&script);
    let output = String::from_utf8_lossy(&output.stdout);
    let outputs: Vec<&str> = output.split(MARK).skip(1).collect();
    assert_eq!(outputs.len(), blocks.len(), "{output}");
    for ((block, _), output) in blocks.iter().zip(outputs) {
        let expected = block.lines().filter_map(|line| line.strip_prefix("# "));
        let mut rest = output;
        for line in expected {
            let found = rest.split_once(line);
            let (_, behind) = found.unwrap_or_else(|| panic!("{line} is not in: {output}"));
            rest = behind;
        }
    }
}
