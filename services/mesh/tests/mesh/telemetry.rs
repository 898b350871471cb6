//! Spans: one call, two processes' worth of spans, one trace, at a collector.

use belay_mesh::{
    channel::Channels,
    server::MeshServer,
    telemetry::{Telemetry, TelemetryOptions},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::{Span, span::SpanKind},
};
use tokio::{net::TcpListener, sync::mpsc};
use tonic::{Request, Response, Status, transport::server::TcpIncoming};
use tracing::Instrument as _;

use crate::support::{Running, Scripted, instance, tool_call, within};

/// A collector that hands on what it is sent.
struct Collector(mpsc::UnboundedSender<Span>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans);
        for span in spans {
            let _ = self.0.send(span);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calls_span_is_the_child_of_its_callers() {
    let (sent, mut spans) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(Collector(sent)))
            .serve_with_incoming(TcpIncoming::from(listener)),
    );
    let options = TelemetryOptions {
        otlp: Some(format!("http://{address}")),
        log: None,
    };
    let telemetry = Telemetry::start("resources/counter/0", &options).unwrap();
    let server = Running::start(MeshServer::new(&instance()).data(Scripted::echo().service())).await;
    let mut client = server.peers(Channels::default()).resources(&instance()).unwrap();
    // Hours of other tests may share the process: the name tells our trace from theirs.
    let caller = tracing::info_span!("the caller of this test");
    let reply = client.call_tool(tool_call("x")).instrument(caller.clone()).await;
    reply.unwrap();
    drop(caller);
    server.stop().await;
    // Its end sends what is left.
    tokio::task::spawn_blocking(move || drop(telemetry))
        .await
        .unwrap();

    let (mut ours, mut calls) = (None, Vec::new());
    let pair = loop {
        let span = within("the spans", spans.recv())
            .await
            .expect("the collector runs");
        match span.name.as_str() {
            "the caller of this test" => ours = Some(span),
            "belay.episode.v1.Resources/CallTool" => calls.push(span),
            _ => {}
        }
        if let Some(ours) = &ours
            && let Some(call) = calls.iter().find(|call| call.trace_id == ours.trace_id)
        {
            break (ours.clone(), call.clone());
        }
    };
    let (caller, call) = pair;
    assert_eq!(call.parent_span_id, caller.span_id);
    assert_eq!(call.kind(), SpanKind::Server);
    assert!(caller.parent_span_id.is_empty());
}
