// WebAuthn's options and answers as JSON, in which bytes are base64url. Browsers have functions for it
// (PublicKeyCredential.parseCreationOptionsFromJSON, toJSON), the oldest that we support do not.

export function creationOptions(json: PublicKeyCredentialCreationOptionsJSON): PublicKeyCredentialCreationOptions {
  const { challenge, user, excludeCredentials = [], ...rest } = json;
  return {
    ...(rest as Omit<PublicKeyCredentialCreationOptions, "challenge" | "user">),
    challenge: bytes(challenge),
    user: { ...user, id: bytes(user.id) },
    excludeCredentials: excludeCredentials.map(descriptor),
  };
}

export function requestOptions(json: PublicKeyCredentialRequestOptionsJSON): PublicKeyCredentialRequestOptions {
  const { challenge, allowCredentials = [], ...rest } = json;
  return {
    ...(rest as Omit<PublicKeyCredentialRequestOptions, "challenge">),
    challenge: bytes(challenge),
    allowCredentials: allowCredentials.map(descriptor),
  };
}

/** What a device answered, to a challenge of either kind. */
export function toJson({ id, type, rawId, response }: PublicKeyCredential): object {
  const parts = response as Partial<AuthenticatorAttestationResponse & AuthenticatorAssertionResponse>;
  const answer: Record<string, unknown> = { clientDataJSON: text(response.clientDataJSON) };
  for (const name of ["attestationObject", "authenticatorData", "signature", "userHandle"] as const) {
    const part = parts[name];
    if (part) answer[name] = text(part);
  }
  if (parts.getTransports) answer.transports = parts.getTransports();
  // An attestation has the authenticator's data within, and a field of its own, which the server does not take.
  if (parts.attestationObject) delete answer.authenticatorData;
  return { id, type, rawId: text(rawId), response: answer, clientExtensionResults: {} };
}

const descriptor = ({ id, transports, ...rest }: PublicKeyCredentialDescriptorJSON): PublicKeyCredentialDescriptor => ({
  ...(rest as { type: "public-key" }),
  id: bytes(id),
  ...(transports ? { transports: transports as AuthenticatorTransport[] } : {}),
});

export function bytes(base64url: string): Uint8Array<ArrayBuffer> {
  const plain = atob(base64url.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(plain, (letter) => letter.charCodeAt(0));
}

export function text(buffer: ArrayBuffer): string {
  const plain = Array.from(new Uint8Array(buffer), (byte) => String.fromCharCode(byte)).join("");
  return btoa(plain).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}
