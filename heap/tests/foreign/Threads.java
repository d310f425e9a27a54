// A JVM program with much native memory: threads, zip streams, direct buffers, class loading, garbage collection. Prints checksums.
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.CRC32;
import java.util.zip.DeflaterOutputStream;
import java.util.zip.Inflater;

public class Threads {
    static long work(int seed) throws Exception {
        long state = seed * 7919L + 1, sum = 0;
        List<ByteBuffer> buffers = new ArrayList<>();
        for (int round = 0; round < 60; round++) {
            byte[] data = new byte[20000 + round * 500];
            for (int i = 0; i < data.length; i++) {
                state = state * 6364136223846793005L + 1442695040888963407L;
                data[i] = (byte) (state >>> 60);
            }
            ByteArrayOutputStream packed = new ByteArrayOutputStream();
            try (DeflaterOutputStream out = new DeflaterOutputStream(packed)) {
                out.write(data);
            }
            Inflater inflater = new Inflater();
            inflater.setInput(packed.toByteArray());
            byte[] back = new byte[data.length];
            int length = inflater.inflate(back);
            inflater.end();
            CRC32 crc = new CRC32();
            crc.update(back, 0, length);
            sum = sum * 31 + crc.getValue();
            ByteBuffer direct = ByteBuffer.allocateDirect(64 * 1024 + round);
            direct.put(0, (byte) round);
            buffers.add(direct);
            if (buffers.size() > 20) {
                sum += buffers.remove(0).get(0);
            }
        }
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Future<Long>> results = new ArrayList<>();
        for (int i = 0; i < 24; i++) {
            int seed = i;
            results.add(pool.submit((Callable<Long>) () -> work(seed)));
        }
        for (int i = 0; i < results.size(); i++) {
            System.out.println("ok task " + i + " " + results.get(i).get());
        }
        pool.shutdown();
        for (int i = 0; i < 300; i++) {
            Thread thread = new Thread(() -> ByteBuffer.allocateDirect(1000).put(5, (byte) 1));
            thread.start();
            thread.join();
        }
        System.gc();
        System.out.println("ok 300 threads");
    }
}
