import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

/** Fetches a URL with a client of the JDK, and prints status and body. */
public class Fetch {
    public static void main(String[] arguments) throws InterruptedException {
        var uri = URI.create(arguments[1]);
        try {
            switch (arguments[0]) {
                case "HttpClient" -> {
                    var request = HttpRequest.newBuilder(uri).build();
                    var answer = HttpClient.newHttpClient().send(request, BodyHandlers.ofString());
                    System.out.println(answer.statusCode() + " " + answer.body());
                }
                case "HttpURLConnection" -> {
                    var connection = (HttpURLConnection) uri.toURL().openConnection();
                    var body = new String(connection.getInputStream().readAllBytes());
                    System.out.println(connection.getResponseCode() + " " + body);
                }
                default -> throw new IllegalArgumentException(arguments[0]);
            }
        } catch (IOException error) {
            System.err.println(error);
            System.exit(1);
        }
    }
}
