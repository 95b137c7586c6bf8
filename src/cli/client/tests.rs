use serde_json::json;
use serde_json::value::to_raw_value;
use testkit::each_row;

use super::*;

fn raw(body: &Value) -> Box<RawValue> {
    to_raw_value(body).unwrap()
}

#[test]
fn a_name_is_encoded_as_one_path_segment() {
    assert_eq!(segment("get_weather-2"), "get_weather-2");
    assert_eq!(segment("../a/b?c#é"), "%2E%2E%2Fa%2Fb%3Fc%23%C3%A9");
}

#[test]
fn a_response_of_another_form_is_refused() {
    let incomplete = json!({"containers": [{"container_id": "c1", "repos": []}]});
    each_row([json!({}), json!("x"), incomplete], |body| {
        let failure = typed::<ContainerList>(Response::new(raw(&body))).unwrap_err();
        assert_eq!(failure.code(), code::SOFTWARE);
        assert!(format!("{failure:?}").contains("another version"));
    });
}

#[test]
fn an_error_is_shown_with_its_sentence_or_else_as_received() {
    let errors = json!({"error": "Not reloaded", "errors": ["x"]});
    each_row(
        [
            (400, json!({"error": "Wrong"}), code::USAGE, "Wrong"),
            (422, errors, code::USAGE, "Not reloaded"),
            (500, json!({"error": "Broken"}), code::SOFTWARE, "Broken"),
            (503, json!([1]), code::SOFTWARE, "[1]"),
        ],
        |(status, body, code, message)| {
            let response = Response::builder().status(status).body(raw(&body)).unwrap();
            let failure = failure(response);
            assert_eq!(failure.code(), code);
            assert!(format!("{failure:?}").contains(message), "{failure:?}");
        },
    );
}
