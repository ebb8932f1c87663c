//! The first hour with the program: what it asks, what it says, and what it refuses before it asks.

use crate::support::people::Person;

/// Makes a passphrase cheap to try.
const CHEAP: [&str; 4] = ["--kdf-memory", "32", "--kdf-passes", "1"];

/// A passphrase that is not called weak.
const STRONG: &str = "zebra lunar piano grave ticket mural";

/// Makes a vault at a terminal.
fn init(person: &Person, vault: &str) {
    let mut terminal = person.at_terminal(&[&["init"][..], &CHEAP, &[vault]].concat());
    terminal.expect(&format!("New passphrase of the vault {vault}: ")).type_line(STRONG);
    terminal.expect("this passphrase is strong").expect("Repeat it").type_line(STRONG);
    let (code, said) = terminal.end();
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_typed_passphrase_has_three_attempts() {
    // One mistyped letter ended `mount`, and every check before it was made again.
    let ann = Person::new("ann");
    init(&ann, "vault");
    let prompt = "Passphrase of the vault ~/vault: ";
    let mut terminal = ann.at_terminal(&["ls", "vault"]);
    terminal.expect(prompt).type_line("wrong");
    terminal.expect("checking the passphrase");
    terminal.expect("wrong passphrase").expect("2 attempts left").expect(prompt).type_line("wrong");
    terminal.expect("1 attempt left").expect(prompt).type_line(STRONG);
    assert_eq!(terminal.end().0, 0);
    let mut terminal = ann.at_terminal(&["ls", "vault"]);
    for _ in 0..3 {
        terminal.expect(prompt).type_line("wrong");
    }
    let (code, said) = terminal.end();
    assert_eq!((code, said.matches(prompt).count()), (3, 3), "{said}");
}

#[test]
fn a_weak_passphrase_is_warned_of_and_taken() {
    let ann = Person::new("ann");
    let mut terminal = ann.at_terminal(&[&["init"][..], &CHEAP, &["vault"]].concat());
    let prompt = "New passphrase of the vault vault: ";
    terminal.expect(prompt).type_line("hunter2").expect("this passphrase is weak");
    // Enter alone goes back to the choice.
    terminal.expect("Repeat it (or press Enter to choose another one): ").type_line("");
    terminal.expect(prompt).type_line("hunter2").expect("Repeat it").type_line("hunter3");
    terminal.expect("the two passphrases differ; 2 attempts left");
    terminal.expect(prompt).type_line("hunter2").expect("Repeat it").type_line("hunter2");
    let (code, said) = terminal.end();
    assert_eq!(code, 0, "{said}");
    // A passphrase from a file is judged too.
    ann.write("weak", "hunter2\n");
    let args = [&["init", "--passphrase-file", "weak"][..], &CHEAP, &["other"]].concat();
    let said = crate::support::people::stderr(&ann.ok(&args));
    assert!(said.contains("this passphrase is weak"), "{said}");
}
