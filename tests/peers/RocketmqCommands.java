// Commands of mqadmin, one after the other in one process: each line of a file has its words, with tabs between them.

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

class RocketmqCommands {
    public static void main(String[] words) throws Exception {
        PrintStream told = System.out;
        for (String line : Files.readAllLines(Paths.get(words[2]), StandardCharsets.UTF_8)) {
            ByteArrayOutputStream text = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(text, true, "UTF-8");
            System.setOut(out);
            System.setErr(out);
            try {
                MQAdminStartup.main0(line.split("\t"), null);
            } catch (Throwable error) {
                error.printStackTrace(out);
            }
            told.println("{\"text\": \"" + Base64.getEncoder().encodeToString(text.toByteArray()) + "\"}");
        }
        told.flush();
        System.exit(0);
    }
}
