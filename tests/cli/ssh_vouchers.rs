//! SSH keys that vouch for a contact's key, with signatures of the real ssh-keygen.

use crate::support::people::{Person, has, key, refused, said};

/// Returns Bob, who has SSH keys of each kind.
fn with_ssh_keys() -> Person {
    let bob = Person::with_identity("bob");
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let (done, told) = bob.shell(&format!("ssh-keygen -q -t {kind} -N '' -f {kind}"));
        assert!(done, "{told}");
    }
    bob
}

/// Signs Bob's key as the manual describes, for Ann, who has Bob's SSH keys.
fn sign(bob: &Person, ann: &Person, kind: &str, namespace: &str) {
    let kithfs = env!("CARGO_BIN_EXE_kithfs");
    let (done, told) = bob.shell(&format!(
        "{kithfs} identity export | ssh-keygen -Y sign -n {namespace} -f {kind} >signature 2>/dev/null
         cp signature '{0}/signature'; cp {kind}.pub '{0}/{kind}.pub'",
        ann.home().display()
    ));
    assert!(done, "{told}");
}

fn state(ann: &Person) -> String {
    let list = said(&ann.ok(&["contact", "list", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    list[0]["state"].as_str().unwrap().to_owned()
}

fn verify(keys: &str) -> [&str; 7] {
    ["contact", "verify", "Bob", "--ssh", keys, "--signature", "signature"]
}

#[test]
fn an_ssh_key_vouches_for_a_kith_key() {
    if !has("ssh-keygen") {
        return;
    }
    let bob = with_ssh_keys();
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let ann = Person::new("ann");
        ann.ok(&["contact", "add", "Bob", &key(&bob)]);
        sign(&bob, &ann, kind, "kithfs");
        assert_eq!(state(&ann), "new");
        let told = ann.ok(&verify(&format!("{kind}.pub")));
        let told = String::from_utf8(told.stderr).unwrap();
        assert!(told.contains("has signed this key with the SSH key SHA256:"), "{told}");
        assert_eq!(state(&ann), "verified");
    }
}

#[test]
fn what_an_ssh_key_did_not_sign_is_refused() {
    if !has("ssh-keygen") {
        return;
    }
    let (bob, eve, ann) = (with_ssh_keys(), Person::with_identity("eve"), Person::new("ann"));
    let refuses = |keys: &str, why: &str| {
        refused(&ann.fails(&verify(keys), 14), why);
        assert_eq!(state(&ann), "new", "{why}");
    };
    // Eve sends Eve's key as Bob's, with a signature that Bob made for Bob's key.
    ann.ok(&["contact", "add", "Bob", &key(&eve)]);
    sign(&bob, &ann, "ed25519", "kithfs");
    refuses("ed25519.pub", "not for this public key");
    ann.ok(&["contact", "remove", "Bob"]);
    ann.ok(&["contact", "add", "Bob", &key(&bob)]);
    // Signed by another key than those that Ann has.
    sign(&bob, &ann, "ecdsa", "kithfs");
    refuses("ed25519.pub", "another SSH key, SHA256:");
    // A signature that Bob made for something else, as a server may ask for.
    sign(&bob, &ann, "ed25519", "file");
    refuses("ed25519.pub", "another purpose");
    sign(&bob, &ann, "ed25519", "kithfs");
    // A file of many people: its lines have names or options.
    let line = std::fs::read_to_string(ann.home().join("ed25519.pub")).unwrap();
    ann.write("allowed_signers", &format!("eve@example.org {line}"));
    refuses("allowed_signers", "not a plain public key");
    ann.write("authorized_keys", &format!("# mine\nrestrict,command=\"true\" {line}"));
    refuses("authorized_keys", "line 2");
    ann.write("none", "# nothing\n");
    refuses("none", "no SSH key");
    for text in ["", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"] {
        ann.write("signature", text);
        refuses("ed25519.pub", "not a signature");
    }
    let both = [&verify("ed25519.pub")[..], &["--yes"]].concat();
    ann.fails(&both, 2);
    ann.fails(&["contact", "verify", "Bob", "--ssh", "ed25519.pub"], 2);
    assert_eq!(state(&ann), "new");
}

/// Bob has a new identity. The signature is about the key in question, which is the new one.
#[test]
fn a_changed_key_is_verified_by_a_new_signature() {
    if !has("ssh-keygen") {
        return;
    }
    let (bob, ann) = (with_ssh_keys(), Person::new("ann"));
    ann.ok(&["contact", "add", "Bob", &key(&bob)]);
    sign(&bob, &ann, "ed25519", "kithfs");
    ann.ok(&verify("ed25519.pub"));
    std::fs::remove_file(bob.home().join(".config/kithfs/identity")).unwrap();
    bob.ok(&["identity", "new", "--kdf-memory", "32", "--kdf-passes", "1"]);
    ann.fails(&["contact", "add", "Bob", &key(&bob)], 14);
    refused(&ann.fails(&verify("ed25519.pub"), 14), "not for this public key");
    assert_eq!(state(&ann), "CHANGED");
    sign(&bob, &ann, "ed25519", "kithfs");
    ann.ok(&verify("ed25519.pub"));
    assert_eq!(state(&ann), "verified");
}
