// Validates a document by a JSON schema, with packages of npm: ajv and its formats.
import { Ajv } from 'ajv';
import formats from 'ajv-formats';

const ajv = new Ajv({ allErrors: true });
formats.default(ajv);

export const handler = async ({ schema, document }, context) => {
  const fits = ajv.compile(schema);
  const valid = fits(document);
  console.log(`${valid ? 'fits' : 'does not fit'}: ${context.awsRequestId}`);
  const errors = (fits.errors ?? []).map(({ instancePath, message }) => `${instancePath || '/'} ${message}`);
  return { valid, errors, node: process.versions.node.split('.')[0], request: context.awsRequestId };
};
