// Writes batch_golden.json with Kafka's own MemoryRecordsBuilder, and reads batches back (one per line, in hex) with
// `read FILE`. Run with kafka-clients 3.9.1, lz4-java, snappy-java, zstd-jni and slf4j-api on the class path:
//   java -cp ... BatchGolden.java > batch_golden.json
// From 4.x on the record classes are in org.apache.kafka.common.record.internal.
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.utils.ByteBufferOutputStream;

public class BatchGolden {
    static String hex(byte[] data) {
        return data == null ? "null" : "\"" + HexFormat.of().formatHex(data) + "\"";
    }

    static byte[] bytes(ByteBuffer buffer) {
        if (buffer == null) return null;
        byte[] data = new byte[buffer.remaining()];
        buffer.duplicate().get(data);
        return data;
    }

    static String dump(ByteBuffer buffer) {
        List<String> records = new ArrayList<>();
        for (RecordBatch batch : MemoryRecords.readableRecords(buffer).batches()) {
            batch.ensureValid();
            for (org.apache.kafka.common.record.Record record : batch) {
                List<String> headers = new ArrayList<>();
                for (Header header : record.headers())
                    headers.add("[" + hex(header.key().getBytes(StandardCharsets.UTF_8)) + "," + hex(header.value()) + "]");
                records.add("[" + record.offset() + "," + record.timestamp() + "," + hex(bytes(record.key())) + ","
                    + hex(bytes(record.value())) + ",[" + String.join(",", headers) + "]]");
            }
        }
        return "[" + String.join(",", records) + "]";
    }

    static String sample(byte magic, CompressionType codec, TimestampType type, long deleteHorizon) {
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(new ByteBufferOutputStream(4096), magic, Compression.of(codec).build(),
            type, 1000L, 1700000050000L, -1L, (short) -1, -1, false, false, 3, 1 << 20, deleteHorizon);
        Header[] none = {};
        Header[] three = {new RecordHeader("h", new byte[] {(byte) 0xff, 0}), new RecordHeader("h", null), new RecordHeader("é", new byte[0])};
        Header[] some = magic < 2 ? none : three;
        long time = 1700000000000L;
        builder.appendWithOffset(1000, magic == 0 ? -1 : time, "k0".getBytes(), "v0".getBytes(), some);
        builder.appendWithOffset(1001, magic == 0 ? -1 : time - 5000, (byte[]) null, new byte[0], none);
        builder.appendWithOffset(1002, magic == 0 ? -1 : time + 7000, new byte[0], (byte[]) null, none);
        builder.appendWithOffset(1003, magic == 0 ? -1 : time + 1, "k3".getBytes(), "abc".repeat(60).getBytes(), some);
        ByteBuffer buffer = builder.build().buffer();
        return "{\"magic\":" + magic + ",\"codec\":" + codec.id + ",\"log_append_time\":" + (type == TimestampType.LOG_APPEND_TIME)
            + ",\"delete_horizon\":" + (deleteHorizon >= 0) + ",\n \"bytes\":" + hex(bytes(buffer)) + ",\n \"records\":" + dump(buffer) + "}";
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 2 && arguments[0].equals("read")) {
            for (String line : Files.readAllLines(Path.of(arguments[1])))
                System.out.println(dump(ByteBuffer.wrap(HexFormat.of().parseHex(line))));
            return;
        }
        List<String> samples = new ArrayList<>();
        for (byte magic = 0; magic <= 2; magic++)
            for (CompressionType codec : CompressionType.values()) {
                if (codec == CompressionType.ZSTD && magic < 2) continue;
                samples.add(sample(magic, codec, magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : TimestampType.CREATE_TIME, -1L));
                if (magic > 0) samples.add(sample(magic, codec, TimestampType.LOG_APPEND_TIME, -1L));
                if (magic == 2) samples.add(sample(magic, codec, TimestampType.CREATE_TIME, 1700000099000L));
            }
        System.out.println("[" + String.join(",\n", samples) + "]");
    }
}
