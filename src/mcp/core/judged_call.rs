//! A request between the chain's verdict on it and the verdict on its response.

use std::sync::Arc;

use addons::contract::{CallPermit, Definition, Denial, Direction, Frame, LiveFlow, McpTarget};

use super::results::into_outcome;
use super::{Outcome, record_end};

/// A request that the chain permitted.
pub(super) struct JudgedCall {
    pub permit: CallPermit,
    pub open: OpenCall,
}

/// A request whose response is not judged yet. If it is dropped before, its flow is recorded as
/// aborted.
pub(super) struct OpenCall {
    pub live: LiveFlow,
    /// [`Frame::tools`] of the response.
    pub tools: Option<Arc<[Arc<Definition>]>>,
    direction: Direction,
    target: McpTarget,
    method: Arc<str>,
    definition: Option<Arc<Definition>>,
}

/// A request that the chain denied. Its flow has not ended.
pub(super) struct Refused {
    pub live: LiveFlow,
    pub denial: Denial,
}

impl Refused {
    /// Records the denial as the end of the flow.
    pub fn end(mut self) -> Denial {
        self.live.denied(&self.denial);
        self.denial
    }
}

impl JudgedCall {
    /// Has the chain judge a request. Records a denial as the end of its flow.
    pub async fn admit(live: LiveFlow, frame: Frame) -> Result<Self, Denial> {
        Self::judge(live, frame)
            .await
            .map_err(|refused| refused.end())
    }

    /// Has the chain judge a request. The caller ends the flow of a refused one.
    pub async fn judge(mut live: LiveFlow, frame: Frame) -> Result<Self, Box<Refused>> {
        let (direction, target) = (frame.direction, frame.target.clone());
        let (method, definition) = (Arc::clone(&frame.method), frame.definition.clone());
        let chain = Arc::clone(&live.chain);
        let judged = chain.mcp_request(&mut live.flow, frame).await;
        let permit = match judged {
            Ok(permit) => permit,
            Err(denial) => return Err(Box::new(Refused { live, denial })),
        };
        let open = OpenCall {
            live,
            tools: None,
            direction,
            target,
            method,
            definition,
        };
        Ok(Self { permit, open })
    }
}

impl OpenCall {
    /// Has the chain judge the response, or records the failure to get one. The flow ends with the
    /// verdict, and is recorded once the call is dropped.
    pub async fn conclude(&mut self, response: Result<Outcome, Denial>) -> Result<Outcome, Denial> {
        let judged = self.judge(response).await;
        record_end(&mut self.live, &judged);
        judged
    }

    async fn judge(&mut self, response: Result<Outcome, Denial>) -> Result<Outcome, Denial> {
        let (target, method) = (self.target.clone(), Arc::clone(&self.method));
        let mut frame = Frame::response(self.direction, target, method, response?);
        frame.definition = self.definition.take();
        frame.tools = self.tools.take();
        let chain = Arc::clone(&self.live.chain);
        chain.mcp_response(&mut self.live.flow, &mut frame).await?;
        into_outcome(frame)
    }
}
