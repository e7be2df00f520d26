// An OpenID provider for tests: `oidc-provider`, with what a test sets in place of its pages.
// argv: JSON {client_id, client_secret, redirect_uri}. Prints its issuer, then serves until its standard input ends.
// POST /control: JSON with any of {account, claims, skew_s, rotate, nonce}.

import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";

import Provider from "oidc-provider";

const client = JSON.parse(process.argv[2]);
const state = { account: "erin", claims: {}, skew_s: 0 };
const realNow = Date.now;
Date.now = () => realNow() + state.skew_s * 1000;

function newKey() {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), kid: randomUUID(), use: "sig", alg: "RS256" };
}

function provider(issuer) {
  const made = new Provider(issuer, {
    clients: [
      {
        client_id: client.client_id,
        client_secret: client.client_secret,
        redirect_uris: [client.redirect_uri],
        token_endpoint_auth_method: "client_secret_post",
      },
    ],
    jwks: { keys: [newKey()] },
    cookies: { keys: ["only for tests"] },
    ttl: { IdToken: 600, AccessToken: 600, Grant: 86400, Interaction: 86400, Session: 86400 },
    conformIdTokenClaims: false,
    claims: {
      openid: ["sub", "groups"],
      profile: ["preferred_username", "given_name", "family_name"],
      email: ["email", "email_verified"],
    },
    features: { devInteractions: { enabled: false } },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    pkce: { required: () => true },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...state.claims }) }),
    loadExistingGrant: async (ctx) => {
      const grant = new ctx.oidc.provider.Grant({
        clientId: ctx.oidc.client.clientId,
        accountId: ctx.oidc.session.accountId,
      });
      grant.addOIDCScope("openid profile email");
      await grant.save();
      return grant;
    },
  });
  return { callback: made.callback(), finish: made.interactionFinished.bind(made) };
}

async function body(request) {
  let text = "";
  for await (const part of request) text += part;
  return text;
}

let serving;
const server = createServer(async (request, response) => {
  if (request.url === "/control") {
    const { rotate, ...changes } = JSON.parse(await body(request));
    Object.assign(state, changes);
    if (rotate) serving = provider(issuer);
    response.end();
  } else if (request.url.startsWith("/interaction/")) {
    const result = state.account
      ? { login: { accountId: state.account } }
      : { error: "access_denied", error_description: "canceled" };
    await serving.finish(request, response, result);
  } else {
    serving.callback(request, response);
  }
});
let issuer;
server.listen(0, "127.0.0.1", () => {
  issuer = `http://127.0.0.1:${server.address().port}`;
  serving = provider(issuer);
  console.log(issuer);
});
process.stdin.on("end", () => process.exit()).resume();
