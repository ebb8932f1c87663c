//! One scenario: inputs, bytes, and the expected result.

use std::collections::BTreeMap;

/// A scenario. Values are text; bytes are written in hexadecimal.
#[derive(Debug, Clone, Default)]
pub struct Scenario {
    pub comment: String,
    pub inputs: BTreeMap<String, String>,
    pub bytes: Vec<u8>,
    /// `ok` or the kind of the failure.
    pub expect: String,
    /// The decoded fields, if `expect` is `ok`.
    pub fields: BTreeMap<String, String>,
}

impl Scenario {
    /// Parses a file; any deviation from the form is a mistake in the vector.
    pub fn parse(text: &str) -> Self {
        let mut scenario = Scenario::default();
        let mut hex_text = String::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                scenario.comment.push_str(comment);
            } else if let Some(rest) = line.strip_prefix("    ") {
                hex_text.push_str(rest);
            } else {
                let (key, value) =
                    line.split_once(':').unwrap_or_else(|| panic!("{line:?} is key: value"));
                let value = value.trim().to_owned();
                if key == "hex" {
                    hex_text = value;
                } else if key == "expect" {
                    scenario.expect = value;
                } else if let Some(field) = key.strip_prefix("field ") {
                    assert!(
                        scenario.fields.insert(field.to_owned(), value).is_none(),
                        "{key} occurs twice"
                    );
                } else {
                    let input =
                        key.strip_prefix("input ").unwrap_or_else(|| panic!("{key} is not known"));
                    assert!(
                        scenario.inputs.insert(input.to_owned(), value).is_none(),
                        "{key} occurs twice"
                    );
                }
            }
        }
        assert!(!scenario.expect.is_empty(), "a scenario expects something");
        scenario.bytes = hex::decode(hex_text).expect("hex");
        scenario
    }

    /// Returns the file's text.
    pub fn text(&self) -> String {
        let mut text = format!("# {}\n", self.comment);
        for (key, value) in &self.inputs {
            text.push_str(&format!("input {key}: {value}\n"));
        }
        text.push_str("hex:\n");
        for line in self.bytes.chunks(48) {
            text.push_str(&format!("    {}\n", hex::encode(line)));
        }
        text.push_str(&format!("expect: {}\n", self.expect));
        for (key, value) in &self.fields {
            text.push_str(&format!("field {key}: {value}\n"));
        }
        text
    }

    pub fn text_input(&self, name: &str) -> &str {
        self.inputs.get(name).unwrap_or_else(|| panic!("input {name} is given"))
    }

    pub fn bytes_input(&self, name: &str) -> Vec<u8> {
        hex::decode(self.text_input(name)).unwrap()
    }

    pub fn key(&self, name: &str) -> [u8; 32] {
        self.bytes_input(name).try_into().unwrap_or_else(|_| panic!("{name} has 32 bytes"))
    }

    pub fn number(&self, name: &str) -> u64 {
        self.text_input(name).parse().unwrap()
    }
}
