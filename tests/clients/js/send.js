// Sends the telemetry that test_sdks.py expects with OpenTelemetry's JavaScript SDK, and prints the ids of its spans as JSON.
//
//     send.js grpc|http/json|http/protobuf SERVICE TIME_UNIX_NANO
//
// The SDK's own OTEL_EXPORTER_OTLP_… variables set the destination and compression. NODE_PATH locates the SDK.

const { ROOT_CONTEXT, SpanKind, SpanStatusCode, trace } = require('@opentelemetry/api');
const { SeverityNumber } = require('@opentelemetry/api-logs');
const { defaultResource, resourceFromAttributes } = require('@opentelemetry/resources');
const { BatchLogRecordProcessor, LoggerProvider } = require('@opentelemetry/sdk-logs');
const { AggregationType, MeterProvider, PeriodicExportingMetricReader } = require('@opentelemetry/sdk-metrics');
const { BatchSpanProcessor, TracerProvider } = require('@opentelemetry/sdk-trace');

const [protocol, service, time] = process.argv.slice(2);
const kind = { grpc: 'grpc', 'http/json': 'http', 'http/protobuf': 'proto' }[protocol];
const resource = defaultResource().merge(resourceFromAttributes({ 'service.name': service, 'host.name': 'host-1' }));

function exporter(signal, name) {
    return new (require(`@opentelemetry/exporter-${signal}-otlp-${kind}`)[name])();
}

// The SDK's time: seconds and nanoseconds.
function after(milliseconds) {
    const nanoseconds = BigInt(time) + BigInt(milliseconds) * 1_000_000n;
    return [Number(nanoseconds / 1_000_000_000n), Number(nanoseconds % 1_000_000_000n)];
}

async function sendTraces() {
    const processor = new BatchSpanProcessor({ exporter: exporter('trace', 'OTLPTraceExporter') });
    const provider = new TracerProvider({ resource, spanProcessors: [processor] });
    const tracer = provider.getTracer('shop', '1.2.3');
    const parent = tracer.startSpan('GET /orders', { kind: SpanKind.SERVER, startTime: after(0) });
    const child = tracer.startSpan(
        'SELECT',
        {
            kind: SpanKind.CLIENT,
            attributes: { 'db.rows': 17, 'db.cached': false, 'db.tables': ['orders', 'lines'] },
            links: [{ context: parent.spanContext(), attributes: { why: 'retry' } }],
            startTime: after(10),
        },
        trace.setSpan(ROOT_CONTEXT, parent),
    );
    child.addEvent('cache.miss', { key: 'order-17' }, after(11));
    child.setStatus({ code: SpanStatusCode.ERROR, message: 'the table is gone' });
    child.end(after(30));
    parent.end(after(50));
    await provider.shutdown();
    return [parent, child];
}

async function sendLogs(parent) {
    const processor = new BatchLogRecordProcessor({ exporter: exporter('logs', 'OTLPLogExporter') });
    const provider = new LoggerProvider({ resource, processors: [processor] });
    const logger = provider.getLogger('shop', '1.2.3');
    logger.emit({
        timestamp: after(0),
        context: trace.setSpan(ROOT_CONTEXT, parent),
        severityText: 'WARN',
        severityNumber: SeverityNumber.WARN,
        body: 'order placed: größer 😀',
        attributes: { order: 17, paid: true, price: 9.5, items: ['a', 'b'] },
        eventName: 'order.placed',
    });
    logger.emit({ timestamp: after(1), body: { order: 18, paid: false } });
    await provider.shutdown();
}

async function sendMetrics() {
    const reader = new PeriodicExportingMetricReader({ exporter: exporter('metrics', 'OTLPMetricExporter') });
    const views = [{ instrumentName: 'size', aggregation: { type: AggregationType.EXPONENTIAL_HISTOGRAM } }];
    const provider = new MeterProvider({ resource, readers: [reader], views });
    const meter = provider.getMeter('shop', '1.2.3');
    const orders = meter.createCounter('orders', { unit: '{order}', description: 'Orders placed' });
    orders.add(3, { kind: 'web' });
    orders.add(4, { kind: 'web' });
    meter.createUpDownCounter('in_flight').add(-2);
    meter.createGauge('temperature', { unit: 'Cel' }).record(21.5);
    const latency = meter.createHistogram('latency', { unit: 'ms', advice: { explicitBucketBoundaries: [5, 10] } });
    const size = meter.createHistogram('size', { unit: 'By' });
    for (const value of [1, 7, 50]) {
        latency.record(value);
        size.record(value);
    }
    await provider.shutdown();
}

async function main() {
    const [parent, child] = await sendTraces();
    await sendLogs(parent);
    await sendMetrics();
    const { traceId, spanId, traceFlags } = parent.spanContext();
    const ids = { trace: traceId, flags: traceFlags, parent: spanId, child: child.spanContext().spanId };
    console.log(JSON.stringify(ids));
}

main();
