import com.amazonaws.services.lambda.runtime.Context;
import com.amazonaws.services.lambda.runtime.RequestHandler;
import java.io.IOException;
import java.math.BigDecimal;
import java.util.Map;
import java.util.TreeMap;
import org.apache.commons.csv.CSVFormat;
import org.apache.commons.csv.CSVParser;
import org.apache.commons.csv.CSVRecord;

/** The sum of each column of a table, and how many rows it has. */
public class Totals implements RequestHandler<Map<String, String>, Map<String, Object>> {
    private static final CSVFormat WITH_NAMES =
            CSVFormat.DEFAULT.builder().setHeader().setSkipHeaderRecord(true).setTrim(true).build();

    @Override
    public Map<String, Object> handleRequest(Map<String, String> event, Context context) {
        String table = event.get("csv");
        if (table == null) {
            throw new IllegalArgumentException("csv: the table is missing");
        }
        Map<String, BigDecimal> totals = new TreeMap<>();
        long rows = 0;
        try (CSVParser parser = CSVParser.parse(table, WITH_NAMES)) {
            for (CSVRecord row : parser) {
                rows++;
                for (Map.Entry<String, String> cell : row.toMap().entrySet()) {
                    totals.merge(cell.getKey(), number(cell, rows), BigDecimal::add);
                }
            }
        } catch (IOException error) {
            throw new IllegalArgumentException("csv: " + error.getMessage());
        }
        context.getLogger().log("added up " + rows + " rows\n");
        return Map.of("rows", rows, "totals", totals, "request", context.getAwsRequestId());
    }

    private static BigDecimal number(Map.Entry<String, String> cell, long row) {
        try {
            return new BigDecimal(cell.getValue());
        } catch (NumberFormatException error) {
            throw new IllegalArgumentException(
                    "row " + row + ", " + cell.getKey() + ": '" + cell.getValue() + "' is no number");
        }
    }
}
