// The bytes of passkeys as JSON.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, creationOptions, requestOptions, text, toJson } from "../../static/src/ts/passkey-json";

const all = Uint8Array.from({ length: 256 }, (_, n) => n);

test("bytes survive the way to text and back, without signs that base64url has not", () => {
  for (const length of [0, 1, 2, 3, 255, 256]) {
    const written = text(all.slice(0, length).buffer);
    assert(/^[\w-]*$/.test(written), written);
    assert.deepEqual(bytes(written), all.slice(0, length));
  }
  assert.equal(text(Uint8Array.of(251, 255).buffer), "-_8");
});

test("options have bytes where browsers take them, and keep the rest", () => {
  const made = creationOptions({
    rp: { id: "localhost", name: "Luthier" },
    user: { id: "AQI", name: "alice", displayName: "alice" },
    challenge: "AwQ",
    pubKeyCredParams: [{ type: "public-key", alg: -7 }],
    excludeCredentials: [{ type: "public-key", id: "BQY", transports: ["usb"] }],
  });
  assert.deepEqual(made.user.id, Uint8Array.of(1, 2));
  assert.deepEqual(made.challenge, Uint8Array.of(3, 4));
  assert.deepEqual(made.excludeCredentials, [{ type: "public-key", id: Uint8Array.of(5, 6), transports: ["usb"] }]);
  assert.equal(made.rp.id, "localhost");
  const asked = requestOptions({ challenge: "AwQ", rpId: "localhost", allowCredentials: [{ type: "public-key", id: "BQY" }] });
  assert.deepEqual(asked, { challenge: Uint8Array.of(3, 4), rpId: "localhost", allowCredentials: [{ type: "public-key", id: Uint8Array.of(5, 6) }] });
});

test("an answer has what the server reads, and no field that is not there", () => {
  const response = { clientDataJSON: all.slice(1, 3).buffer, authenticatorData: all.slice(3, 5).buffer, signature: all.slice(5, 7).buffer, userHandle: null };
  const answer = toJson({ id: "AQI", rawId: all.slice(1, 3).buffer, type: "public-key", response } as unknown as PublicKeyCredential);
  assert.deepEqual(answer, {
    id: "AQI",
    rawId: "AQI",
    type: "public-key",
    response: { clientDataJSON: "AQI", authenticatorData: "AwQ", signature: "BQY" },
    clientExtensionResults: {},
  });
  const made = { clientDataJSON: all.slice(1, 3).buffer, attestationObject: all.slice(7, 9).buffer, getTransports: () => ["usb"] };
  const added = toJson({ id: "AQI", rawId: all.slice(1, 3).buffer, type: "public-key", response: made } as unknown as PublicKeyCredential) as { response: object };
  assert.deepEqual(added.response, { clientDataJSON: "AQI", attestationObject: "Bwg", transports: ["usb"] });
});
