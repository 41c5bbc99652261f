import java.nio.file.Path;
import org.apache.spark.sql.SparkSession;

/** Prints the number of rows of each Delta table of a lake: "TABLE COUNT". */
public class CountRows {
    public static void main(String[] arguments) {
        SparkSession spark = SparkSession.builder()
            .master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            // By default, the log of each table is read in 50 tasks.
            .config("spark.databricks.delta.snapshotPartitions", "1")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .getOrCreate();
        for (int i = 1; i < arguments.length; i++) {
            String table = Path.of(arguments[0], arguments[i]).toString();
            System.out.println(arguments[i] + " " + spark.read().format("delta").load(table).count());
        }
        spark.stop();
    }
}
